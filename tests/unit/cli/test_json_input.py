"""Tests of JSON lines as tables of the topic's types.

Errors name line and column.
"""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest

from millrace.cli.json_input import opaque_json_table, typed_json_table
from millrace.errors import SchemaMismatchError
from millrace.schemas import parse_schema


@pytest.mark.parametrize(
    ("ddl", "text", "expected"),
    [
        ("TIMESTAMP", '"2024-01-01T02:00:00.123456+02:00"', datetime(2024, 1, 1, 0, 0, 0, 123456, UTC)),
        ("TIMESTAMP", '"2024-01-01T00:00:00"', datetime(2024, 1, 1, tzinfo=UTC)),
        ("TIMESTAMP_NTZ", '"2024-01-01T00:00:00"', datetime(2024, 1, 1)),
        ("DATE", '"2024-02-29"', date(2024, 2, 29)),
        ("TIME", '"12:30:00"', time(12, 30)),
        ("DECIMAL(5,2)", '"1.25"', Decimal("1.25")),
        ("DECIMAL(5,2)", "1.25", Decimal("1.25")),
        ("BINARY", '"aGk="', b"hi"),
        ("INTERVAL DAY TO SECOND", "1.5", timedelta(seconds=1.5)),
        ("STRUCT<x: INT, d: DATE>", '{"x": 1, "d": "2024-01-01"}', {"x": 1, "d": date(2024, 1, 1)}),
        ("ARRAY<DATE>", '["2024-01-01"]', [date(2024, 1, 1)]),
        ("MAP<STRING, DOUBLE>", '{"x": 1.5}', [("x", 1.5)]),
        ("TINYINT", "3", 3),
        ("DOUBLE", "3", 3.0),
        ("BOOLEAN", "true", True),
        ("STRING", '"é"', "é"),
    ],
)
def test_each_type_is_read_from_json_and_missing_values_are_null(ddl: str, text: str, expected: Any) -> None:
    schema = parse_schema(f"a {ddl}, b INT")
    table = typed_json_table(f'{{"a": {text}, "b": 1}}\n{{"b": 2}}\n'.encode(), schema, 1)
    assert table.column("a").to_pylist() == [expected, None]
    assert table.column("b").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("ddl", "text", "message"),
    [
        ("TINYINT", "300", "line 8: column a: 300 is not a valid TINYINT"),
        ("BIGINT", "3.5", "line 8: a: Decimal.*BIGINT"),
        ("STRING", "3", "line 8: column a: 3 is not a valid STRING"),
        ("DATE", '"soon"', "line 8: a: 'soon' is not a valid DATE"),
        ("BINARY", '"?"', "line 8: a: '\\?' is not a valid BINARY"),
        ("STRUCT<x: INT>", "3", "line 8: a: 3 is not a valid STRUCT"),
    ],
)
def test_misfits_name_line_and_column(ddl: str, text: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        typed_json_table(f'{{"a": null}}\n{{"a": {text}}}\n'.encode(), parse_schema(f"a {ddl}"), 7)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"b": 1}', "line 1: column b is not in the topic's schema"),
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1: a record"),
    ],
)
def test_lines_that_are_no_objects_of_the_schema_are_refused_with_their_number(line: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        typed_json_table(line.encode(), parse_schema("a INT"), 1)


def test_json_objects_become_records_of_an_opaque_topic() -> None:
    lines = b'{"key": "k", "value": "v", "timestamp": 5, "headers": {"h": "x"}}\n'
    lines += b'{"value": {"base64": "AP8="}, "offset": 3}\n'
    assert opaque_json_table(lines, 1).to_pylist() == [
        {"key": b"k", "value": b"v", "timestamp": 5, "headers": [{"key": "h", "value": b"x"}]},
        {"key": None, "value": b"\x00\xff", "timestamp": None, "headers": []},
    ]
    with pytest.raises(SchemaMismatchError, match="line 4: a record of an opaque topic"):
        opaque_json_table(b'{"id": 1}', 4)
    with pytest.raises(SchemaMismatchError, match="line 1: unknown field vale"):
        opaque_json_table(b'{"value": 1, "vale": 1}', 1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("null", "line 1: a record of a typed topic is an object"),
        ('{"a": 1}\nnull', "line 2: a record of a typed topic is an object"),
        ('{"a": 1}\rnull', "line 2: a record of a typed topic is an object"),
        ('{"a": 1}\n{"a": 2}{"a": 3}', "line 2 is not JSON: Extra data"),
        ('{"a": 1} null', "line 1 is not JSON: Extra data"),
    ],
)
def test_a_line_of_a_typed_topic_is_one_object(lines: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        typed_json_table(lines.encode(), parse_schema("a INT"), 1)


def test_blank_lines_are_no_records() -> None:
    assert typed_json_table(b'\n  \n {"a": 1}\n\n', parse_schema("a INT"), 1).to_pylist() == [{"a": 1}]
    assert typed_json_table(b"\n \n", parse_schema("a INT"), 1).num_rows == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('"headers": 5', "line 4: headers are an object"),
        ('"headers": [["a"]]', "line 4: headers are an object"),
        ('"headers": [[null, "x"]]', "line 4: headers are an object"),
        ('"headers": {"\\ud800": "x"}', "line 4: .*surrogates not allowed"),
        ('"key": "\\ud800"', "line 4: .*surrogates not allowed"),
        ('"key": ["\\ud800"]', "line 4: .*surrogates not allowed"),
        ('"timestamp": 100000000000000000000', "timestamp in the lines from 4 on"),
    ],
)
def test_wrong_fields_of_a_record_name_the_line(fields: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        opaque_json_table(f'{{"value": "v", {fields}}}'.encode(), 4)


def test_a_record_without_a_timestamp_gets_the_time_of_the_send() -> None:
    table = opaque_json_table(b'{"value": "v", "timestamp": -1}\n{"value": "w", "timestamp": 5}', 1)
    assert table.column("timestamp").to_pylist() == [None, 5]
