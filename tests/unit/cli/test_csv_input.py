from __future__ import annotations

import io

import pytest

from millrace.cli.csv_input import csv_tables
from millrace.errors import SchemaMismatchError
from millrace.schemas import parse_ddl

SCHEMA = parse_ddl("id BIGINT NOT NULL, city STRING, price DOUBLE, day DATE")


def _source(text: str) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(text.encode()))


def test_columns_get_the_types_of_the_schema() -> None:
    (table,) = csv_tables(_source("id,city,price,day\n1,Oslo,2,2024-05-01\n2,,,\n"), SCHEMA)
    assert table.schema.types == SCHEMA.types
    assert table.column("city").to_pylist() == ["Oslo", None]


def test_without_a_schema_the_values_decide() -> None:
    (table,) = csv_tables(_source("id,city\n1,Oslo\n"), None)
    assert table.to_pylist() == [{"id": 1, "city": "Oslo"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("city,id\nOslo,5\nRome,6.5\n", r"line 3: column id: invalid value '6.5' for BIGINT"),
        ("id,day\n5,tomorrow\n", r"line 2: column day: invalid value 'tomorrow' for DATE"),
        ("id,city\n5,Oslo\n6,Rome,Italy\n", r"line 3: Expected 2 columns, got 3: 6,Rome,Italy"),
        ("", r"the CSV cannot be read: Empty CSV file"),
    ],
)
def test_what_does_not_fit_is_named_by_line_and_column(text: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=f"^{message}"):
        list(csv_tables(_source(text), SCHEMA))


def test_lines_are_counted_through_the_blocks_of_a_long_file() -> None:
    text = "id,city\n" + "5,a city with quite a long name\n" * 100_000 + "x,Rome\n"
    with pytest.raises(SchemaMismatchError, match=r"^line 100002: column id"):
        list(csv_tables(_source(text), SCHEMA))


def test_a_source_that_cannot_look_ahead_is_read_all_the_same() -> None:
    with pytest.raises(SchemaMismatchError, match=r"^line 2: column number 1"):
        list(csv_tables(io.BytesIO(b"id,city\nx,Rome\n"), SCHEMA))
