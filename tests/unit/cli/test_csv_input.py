from __future__ import annotations

import csv
import io

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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
def test_a_value_that_does_not_fit_is_named_by_line_and_column(text: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=f"^{message}"):
        list(csv_tables(_source(text), SCHEMA))


def test_lines_are_counted_through_the_blocks_of_a_long_file() -> None:
    text = "id,city\n" + "5,a city with quite a long name\n" * 100_000 + "x,Rome\n"
    with pytest.raises(SchemaMismatchError, match=r"^line 100002: column id"):
        list(csv_tables(_source(text), SCHEMA))


def test_a_value_that_does_not_fit_is_named_also_if_one_read_gives_the_whole_file() -> None:
    with pytest.raises(SchemaMismatchError, match=r"^line 2: column id"):
        list(csv_tables(io.BytesIO(b"id,city\nx,Rome\n"), SCHEMA))


class _Trickle(io.BytesIO):
    """A stream that gives few bytes at a time, like a pipe."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        super().__init__(data)
        self._sizes = sizes

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.read(self._sizes.pop() if self._sizes else 7)


_TEXTS = st.text(st.sampled_from('a," \n\r;é'), max_size=8)


@given(st.lists(st.tuples(st.integers(0, 99), _TEXTS), min_size=1), st.lists(st.integers(1, 30)))
def test_records_are_the_same_wherever_the_blocks_end(rows: list[tuple[int, str]], sizes: list[int]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["id", "city"])
    writer.writerows(rows)
    data = text.getvalue().encode()
    schema = parse_ddl("id BIGINT NOT NULL, city STRING")
    try:
        (whole,) = csv_tables(io.BytesIO(data), schema)
    except SchemaMismatchError:
        assume(False)
    in_pieces = pa.concat_tables(csv_tables(_Trickle(data, sizes), schema))
    assert in_pieces.to_pylist() == whole.to_pylist()


def test_types_are_those_of_the_first_values_throughout() -> None:
    source = _Trickle(b"id,city\n1,Oslo\n2,3\n4,Rome\n", [30, 11, 8])
    tables = list(csv_tables(source, None))
    assert len(tables) > 1
    assert {table.schema for table in tables} == {tables[0].schema}
    with pytest.raises(SchemaMismatchError, match=r"^line 4: column id: invalid value 'x' for BIGINT"):
        list(csv_tables(_Trickle(b"id,city\n1,Oslo\n2,3\nx,Rome\n", [30, 11, 8]), None))


def test_only_an_empty_value_is_null() -> None:
    texts = ["NA", "null", '"NULL"', "NaN", '""', ""]
    (table,) = csv_tables(_source("id,city\n" + "".join(f"1,{text}\n" for text in texts)), SCHEMA)
    assert table.column("city").to_pylist() == ["NA", "null", "NULL", "NaN", "", None]


@pytest.mark.parametrize("key", [None, "id"])
def test_keys_and_values_of_an_opaque_topic_are_text(key: str | None) -> None:
    (table,) = csv_tables(_source(f"{key or 'key'},value,partition\n007,1.50,2\n"), None, key)
    assert table.to_pylist() == [{key or "key": "007", "value": "1.50", "partition": 2}]
