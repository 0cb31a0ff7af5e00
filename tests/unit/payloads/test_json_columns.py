"""Tests that all ways of reading JSON have the same results.

The ways are Arrow's reader, columns of Python's values, and one value at a time. The last one is the reference.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.types as pat
import pytest
from hypothesis import example, given, settings

from millrace.payloads.json_columns import columns_of
from millrace.payloads.json_objects import JsonReader
from millrace.payloads.json_values import NotAValueError, parse_json, struct_of
from millrace.schemas import parse_ddl

_LEAVES = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(9,2)", "DECIMAL(38,0)", "STRING",
    "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIME", "INTERVAL DAY TO SECOND",
)  # fmt: skip
_NUMBERS = (
    "1", "-0", "1.0", "1e3", "12.25", "12.345", "127", "128", "-129", "32768", "2147483648", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809", "1e18", "1e19", "1e40", "1e400", "1e-400", "0e99999", "3.5e38",
    "1e-99999999999999999999", "1e99999999999999999999", "9" * 38, "9" * 39, "7" * 400, "7" * 5000, "1" * 7 + ".25",
    "NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.",
)  # fmt: skip
_TEXTS = (
    "", "NaN", "Infinity", "-Infinity", "nan", "1", "1.50", " 1.5 ", "1_0", "1e2", "1e400", "é", "\ud83d\ude00",
    "\u0661", "YWI=", "YWI", "Y W=", "2024-05-01", "20240501", "2024-02-30", "2024-W18-3", "0000-01-01", "9999-12-31",
    "2024-05-01T10:00:00Z", "2024-05-01T10:00:00", "2024-05-01 10:00:00", "2024-05-01T10:00:00.1234567+01:00",
    "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.999999", "10:00", "10:00:00.123456789", "25:00", "24:00:00",
    "PT1.5S", "P1DT2H", "-PT0.000001S", "P1M", "P", "P999999999D", "PT",
)  # fmt: skip
_text_forms = st.sampled_from([json.dumps(each) for each in _TEXTS] + ['"\\ud800"', '"\\udc00x"', '"a\nb"', '"\\q"'])
_leaf_forms = st.sampled_from(["null", "true", "false", *_NUMBERS]) | _text_forms


def _type_texts() -> st.SearchStrategy[str]:
    def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        not_null = st.sampled_from(["", " NOT NULL"])
        return (
            inner.map("ARRAY<{}>".format)
            | inner.map("MAP<STRING, {}>".format)
            | st.tuples(inner, not_null, inner, not_null).map(lambda each: "STRUCT<p: {}{}, q: {}{}>".format(*each))
        )

    return st.recursive(st.sampled_from(_LEAVES), nested, max_leaves=3)


_schemas = st.lists(st.tuples(_type_texts(), st.sampled_from(["", " NOT NULL"])), min_size=1, max_size=3).map(
    lambda columns: parse_ddl(", ".join(f"c{at} {text}{null}" for at, (text, null) in enumerate(columns)))
)


def _fitting(draw: st.DrawFn, data_type: pa.DataType) -> str:
    """Draw the text of a value that has the shape of a type, and most often its kind."""
    if draw(st.integers(0, 39)) == 0:
        return draw(_leaf_forms | st.sampled_from(["{}", "[]", "[1,null]", '{"p":1}', '{"a":{},"a":1}']))
    if pat.is_struct(data_type):
        return _object(draw, list(data_type))
    if pat.is_list(data_type):
        count = draw(st.integers(0, 3))
        return "[" + ",".join(_fitting(draw, data_type.value_type) for _ in range(count)) + "]"
    if pat.is_map(data_type):
        names = draw(st.lists(st.sampled_from(['"a"', '"b"', '"\\u00e9"', '"\\ud800"']), max_size=3))
        return "{" + ",".join(f"{name}:{_fitting(draw, data_type.item_type)}" for name in names) + "}"
    if draw(st.integers(0, 15)) == 0:
        return draw(_leaf_forms)
    return draw(st.sampled_from(_good_forms(data_type)))


@cache
def _good_forms(data_type: pa.DataType) -> list[str]:
    field = pa.field("c", data_type)
    forms = ["null", "true", *_NUMBERS, *map(json.dumps, _TEXTS)]
    return [form for form in forms if not _reference([f'{{"c":{form}}}'.encode()], [field])[1]]


def _object(draw: st.DrawFn, fields: list[pa.Field]) -> str:
    members = [f'"{field.name}":{_fitting(draw, field.type)}' for field in fields if draw(st.integers(0, 19))]
    if draw(st.integers(0, 9)) == 0:
        field = draw(st.sampled_from(fields))
        members.append(f'"{field.name}":{_fitting(draw, field.type)}')
    if draw(st.integers(0, 5)) == 0:
        members.append(f'"unknown":{draw(_leaf_forms)}')
    return "{" + draw(st.sampled_from([",", " ,\n"])).join(members) + "}"


_ODD_PAYLOADS = (
    b"", b" ", b"null", b"[]", b"3", b"{", b"{}}", b"{},{}", b'{"c0"', b'{"c0":"\xff"}', b"\xff", b"{}\x00",
    b"\xef\xbb\xbf{}", b"\xef\xbb\xbf\xef\xbb\xbf{}", b" \xef\xbb\xbf{}", b"\xc2\xa0{}", "{}".encode("utf-16"),
    b'{"c0":' + b"[" * 700 + b"]" * 700 + b"}", b'{"c0":\xed\xa0\x80}', b'{"c0":1}],"x":[{"c0":2}',
)  # fmt: skip


@st.composite
def _batches(draw: st.DrawFn) -> tuple[pa.Schema, list[bytes]]:
    schema = draw(_schemas)
    payloads = []
    for _ in range(draw(st.integers(1, 25))):
        text = _object(draw, list(schema)).encode("utf-8", "surrogatepass")
        payload = draw(st.sampled_from([text] * 20 + [b" \n" + text + b"\t\r ", draw(st.sampled_from(_ODD_PAYLOADS))]))
        payloads.append(payload)
    return schema, payloads


def _reference(payloads: list[bytes], fields: list[pa.Field]) -> tuple[pa.Array, dict[int, str]]:
    rows: list[Any] = []
    faults: dict[int, str] = {}
    for at, payload in enumerate(payloads):
        try:
            value = parse_json(payload)
            if not isinstance(value, dict):
                raise NotAValueError(f"expected an object, found {type(value).__name__}")
            rows.append(struct_of(value, fields, ""))
        except NotAValueError as error:
            faults[at] = str(error)
            rows.append(None)
    return pa.array(rows, pa.struct([field.with_nullable(True) for field in fields])), faults


def _assert_same(array: pa.Array, expected: pa.Array) -> None:
    assert array.type == expected.type
    assert array.equals(expected) or [*map(_plain, array)] == [*map(_plain, expected)]


def _plain(value: pa.Scalar) -> Any:
    """Return a value in which NaN is equal to NaN, and times of day have nanoseconds."""
    if not value.is_valid:
        return None
    if pat.is_struct(value.type):
        return {name: _plain(each) for name, each in value.items()}
    if pat.is_list(value.type):
        return [_plain(each) for each in value]
    if pat.is_map(value.type):
        return [[_plain(part) for part in entry.values()] for entry in value.values]
    return value.value if pat.is_time(value.type) else repr(value.as_py())


def _check(schema: pa.Schema, payloads: list[bytes]) -> None:
    expected, expected_faults = _reference(payloads, list(schema))
    faults: dict[int, str] = {}
    batch = JsonReader(schema).read(pa.array(payloads, pa.binary()), faults.__setitem__)
    batch.validate(full=True)
    assert dict(sorted(faults.items())) == expected_faults
    read = pa.StructArray.from_arrays(batch.columns, fields=list(expected.type), mask=expected.is_null())
    _assert_same(read, expected)

    odd: set[int] = set()
    array = columns_of(pa.array(payloads, pa.binary()), list(schema), odd)
    assert odd.issuperset(expected_faults)
    kept = pa.array([row for row in range(len(payloads)) if row not in odd], pa.int64())
    _assert_same(array.take(kept), expected.take(kept))
    array.take(kept).validate(full=True)


@settings(max_examples=120, deadline=None)
@given(_batches())
@example((parse_ddl("c0 MAP<STRING, BIGINT>"), [b'{"c0":{"\\ud800":1}}', b'{"c0":{"a":1}}', b"{}"]))
@example((parse_ddl("c0 STRUCT<p: INT NOT NULL>"), [b'{"c0":{}}', b'{"c0":null}', b'{"c0":{"p":1}}']))
def test_all_ways_of_reading_have_the_same_rows_and_faults(batch: tuple[pa.Schema, list[bytes]]) -> None:
    _check(*batch)


@pytest.mark.parametrize("data_type", _LEAVES)
@pytest.mark.parametrize("form", ["{}", "[{}]", '{{"a":{}}}'], ids=["alone", "in a list", "in a map"])
def test_every_text_of_a_value_is_read_the_same_alone_and_among_others(data_type: str, form: str) -> None:
    wrapped = {"{}": "{}", "[{}]": "ARRAY<{}>"}.get(form, "MAP<STRING, {}>").format(data_type)
    texts = ["null", "true", "[]", "{}", *_NUMBERS, *map(json.dumps, _TEXTS), '"\\ud800"', '"\\udc00x"']
    payloads = [f'{{"c0":{form.format(text)}}}'.encode() for text in texts]
    schema = parse_ddl(f"c0 {wrapped}")
    _check(schema, payloads)
    for payload in payloads:
        _check(schema, [payload])


def test_faults_in_pieces_have_the_rows_of_their_payloads() -> None:
    schema = parse_ddl("a BIGINT")
    payloads = [b'{"a":"x"}' if row % 1000 == 7 else b'{"a":1.0}' if row % 5 else b'{"a":2}' for row in range(10_000)]
    _check(schema, payloads)
    _check(schema, [b'{"a":1}'] * 9_999 + [b"{"])


@pytest.mark.parametrize("members", ['"a":1.0', '"a":"x"', '"a":[1,1],"a":{}', '"a":1,"x":NaN', '"a":1,'])
def test_large_payloads_are_read_as_small_ones_are(members: str) -> None:
    padding = '"unknown":"' + "y" * 5 * 2**20 + '",'
    schema = parse_ddl("a BIGINT")
    _check(schema, [f"{{{padding}{members}}}".encode()])
    large: dict[int, str] = {}
    small: dict[int, str] = {}
    read = [
        JsonReader(schema).read(pa.array([f"{{{each}{members}}}".encode()], pa.binary()), faults.__setitem__)
        for each, faults in ((padding, large), ("", small))
    ]
    assert read[0].equals(read[1])
    assert large.keys() == small.keys()
