"""Tests of data that fits a schema or fails by name.

Data is converted without loss. An error names column and row.
"""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SchemaMismatchError
from millrace.schemas import conform, parse_schema, to_table


def _fit(ddl: str, values: Any) -> pa.ChunkedArray:
    schema = parse_schema(f"c {ddl}")
    fitted = conform(pa.table({"c": values}), schema)
    fitted.validate(full=True)
    assert fitted.schema == schema
    return fitted.column("c")


def test_columns_are_matched_by_name_and_missing_ones_are_null() -> None:
    schema = parse_schema("id BIGINT NOT NULL, name STRING, score DOUBLE")
    fitted = conform(to_table({"score": [1], "id": [7]}), schema)
    assert fitted.schema == schema
    assert fitted.to_pylist() == [{"id": 7, "name": None, "score": 1.0}]


def test_columns_that_fit_are_not_copied() -> None:
    table = pa.table({"id": pa.array([1, 2, 3])})
    fitted = conform(table, parse_schema("id BIGINT NOT NULL"))
    assert fitted.column(0).chunk(0).buffers()[1].address == table.column(0).chunk(0).buffers()[1].address


@pytest.mark.parametrize(
    ("ddl", "values", "expected"),
    [
        ("INT", pa.array([1, None], pa.int64()), [1, None]),
        ("INT", pa.array([1.0, None]), [1, None]),
        ("DOUBLE", pa.array([1, None]), [1.0, None]),
        ("FLOAT", pa.array([0.5, float("inf")]), [0.5, float("inf")]),
        ("DECIMAL(4,1)", pa.array([123]), [Decimal("123.0")]),
        ("DECIMAL(4,1)", pa.array([Decimal("1.50")]), [Decimal("1.5")]),
        ("STRING", pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        ("STRING", pa.array(["a"], pa.string_view()), ["a"]),
        ("STRING", pa.RunEndEncodedArray.from_arrays([1, 2], ["a", "b"]), ["a", "b"]),
        ("BINARY", pa.array(["é"]), ["é".encode()]),
        ("DATE", pa.array([date(2024, 2, 29)], pa.date64()), [date(2024, 2, 29)]),
        ("TIMESTAMP_NTZ", pa.array([datetime(2024, 1, 1)], pa.timestamp("ns")), [datetime(2024, 1, 1)]),
        ("ARRAY<INT>", pa.array([[1], None, []], pa.large_list(pa.int64())), [[1], None, []]),
        ("ARRAY<INT>", pa.array([[1, 2]], pa.list_(pa.int64(), 2)), [[1, 2]]),
        ("MAP<STRING, INT>", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), [[("a", 1)]]),
        ("STRUCT<a: INT, b: STRING>", pa.array([{"a": 1}, None]), [{"a": 1, "b": None}, None]),
        ("STRUCT<a: INT NOT NULL>", pa.array([{"a": 1}, None]), [{"a": 1}, None]),
        ("STRING", pa.nulls(2), [None, None]),
    ],
)
def test_values_are_cast_to_the_column_type_if_nothing_is_lost(ddl: str, values: pa.Array, expected: list[Any]) -> None:
    assert _fit(ddl, values).to_pylist() == expected


def test_instants_keep_their_time_in_any_zone() -> None:
    fitted = _fit("TIMESTAMP", pa.array([0], pa.timestamp("s", tz="Europe/Paris")))
    assert fitted.type == pa.timestamp("us", tz="UTC")
    assert fitted.cast(pa.int64()).to_pylist() == [0]


@pytest.mark.parametrize(
    ("ddl", "values", "message"),
    [
        ("INT", pa.array([1, 2, 2**40]), r"column c, row 2: 1099511627776 does not fit INT"),
        ("INT", pa.array([1.0, 1.5]), r"column c, row 1: 1.5 does not fit INT"),
        ("FLOAT", pa.array([1.0, 1e300]), r"column c, row 1: 1e\+300 does not fit FLOAT"),
        ("DOUBLE", pa.array([2**53, 2**53 + 1]), r"column c, row 1: 9007199254740993"),
        ("DECIMAL(3,1)", pa.array([1, 100]), r"column c, row 1: 100 does not fit DECIMAL\(3,1\)"),
        ("DECIMAL(3,1)", pa.array([Decimal("1.25")]), r"column c, row 0"),
        ("STRING", pa.array([1]), r"column c: the data is int64, but the schema has STRING"),
        ("INT", pa.array(["1"]), r"column c: the data is string, but the schema has INT"),
        ("STRING", pa.array([b"1"]), r"column c: the data is binary"),
        ("TIMESTAMP", pa.array([datetime(2024, 1, 1)]), r"column c: the data has no time zone"),
        ("TIMESTAMP_NTZ", pa.array([0], pa.timestamp("us", tz="UTC")), r"column c: the data has time zone UTC"),
        ("TIMESTAMP_NTZ", pa.array([1, 0], pa.timestamp("ns")), r"column c, row 0: .*lose data"),
        ("INT NOT NULL", pa.array([1, None, 3, None]), r"column c, row 1: null, but the column is NOT NULL"),
        ("INT NOT NULL", pa.nulls(1), r"column c, row 0: null"),
        ("STRUCT<a: INT NOT NULL>", pa.array([None, {"a": 1}, {"a": None}]), r"(column c.a|column c), row 2"),
        ("STRUCT<a: INT>", pa.array([{"a": 1, "z": 2}]), r"column c.z is not in"),
        ("STRUCT<a: INT NOT NULL>", pa.array([{}], pa.struct([])), r"column c.a is missing"),
        ("ARRAY<INT>", pa.array([["x"]]), r"column c.element: the data is string"),
        ("ARRAY<INT>", pa.array([[1], [2**40]]), r"column c, row 1: \[1099511627776\]"),
        ("MAP<STRING, INT>", pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())), r"column c.value"),
    ],
)
def test_misfits_name_column_and_first_row(ddl: str, values: pa.Array, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        _fit(ddl, values)


def test_required_elements_are_checked_below_the_top() -> None:
    element = pa.field("element", pa.int32(), nullable=False)
    schema = pa.schema([pa.field("c", pa.list_(element))])
    good = pa.table({"c": pa.array([None, [1], []], pa.list_(pa.int32()))})
    assert conform(good, schema).num_rows == 3
    with pytest.raises(SchemaMismatchError, match=r"column c.element, row 2: null"):
        conform(pa.table({"c": pa.array([[1], None, [2, None]], pa.list_(pa.int32()))}), schema)
    mapped = pa.schema([pa.field("c", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)))])
    maps = pa.chunked_array([pa.array([[("a", 1)], [("b", None)]], pa.map_(pa.string(), pa.int32()))])
    assert conform(pa.table({"c": maps.slice(0, 1)}), mapped).num_rows == 1
    with pytest.raises(SchemaMismatchError, match=r"column c.value, row 1: null"):
        conform(pa.table({"c": maps}), mapped)


def test_extra_missing_and_doubled_columns_are_refused() -> None:
    schema = parse_schema("id BIGINT NOT NULL, name STRING")
    with pytest.raises(
        SchemaMismatchError, match="column extra is not in the topic's schema: its columns are id, name"
    ):
        conform(pa.table({"id": [1], "extra": [2]}), schema)
    with pytest.raises(SchemaMismatchError, match="column id is missing, and it is NOT NULL"):
        conform(pa.table({"name": ["a"]}), schema)
    doubled = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(SchemaMismatchError, match="column id occurs twice"):
        conform(doubled, schema)


def test_empty_tables_conform() -> None:
    schema = parse_schema("a INT, b STRUCT<x: INT NOT NULL>, c ARRAY<STRING>")
    assert conform(pa.table({"a": pa.array([], pa.int64())}), schema).num_rows == 0


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=50), st.integers(1, 7))
def test_the_first_bad_row_is_named_for_any_chunks(values: list[int], chunk: int) -> None:
    chunks = pa.chunked_array([values[at : at + chunk] for at in range(0, len(values), chunk)], type=pa.int64())
    bad = next((row for row, value in enumerate(values) if not -(2**31) <= value < 2**31), None)
    if bad is None:
        assert _fit("INT", chunks).to_pylist() == values
    else:
        with pytest.raises(SchemaMismatchError, match=f"row {bad}: {values[bad]} "):
            _fit("INT", chunks)


def test_tables_of_other_libraries_conform() -> None:
    rows = [{"a": 1, "b": "x"}]
    for source in (
        pd.DataFrame(rows),
        pl.DataFrame(rows),
        rows,
        {"a": [1], "b": ["x"]},
        pa.RecordBatch.from_pylist(rows),
    ):
        assert conform(to_table(source), parse_schema("a INT, b STRING")).to_pylist() == rows
    with pytest.raises(SchemaMismatchError, match="a int is not a table"):
        to_table(3)
    with pytest.raises(SchemaMismatchError, match="cannot be converted to a table"):
        to_table({"a": [1, "x"]})
