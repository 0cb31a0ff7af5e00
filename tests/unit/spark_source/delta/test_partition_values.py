"""Tests of partition values.

Each row goes to the files of its values, in order.
"""

import math
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UsageError
from pyspark_millrace.delta.partition_values import check_partition_columns, directory_of, split_by_values


@given(
    st.lists(
        st.tuples(st.sampled_from([None, "", "a", "b/ü", "="]), st.sampled_from([None, True, False]), st.integers(0, 9))
    )
)
def test_rows_are_split_by_their_values(rows):
    schema = pa.schema([("word", pa.string()), ("flag", pa.bool_()), ("n", pa.int64())])
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    found = {tuple(values.items()): part for values, part in split_by_values(table, ["word", "flag"])}
    text = {None: None, True: "true", False: "false"}
    expected = {}
    for word, flag, number in rows:
        # A partition column of Delta does not distinguish an empty text from null.
        expected.setdefault((("word", word or None), ("flag", text[flag])), []).append(number)
    assert {values: part.column("n").to_pylist() for values, part in found.items()} == expected
    assert all(part.schema.names == ["n"] for part in found.values())


def test_values_are_written_as_the_log_has_them():
    from datetime import date

    table = pa.table({"day": [date(2026, 1, 31)], "n": pa.array([-7], pa.int16()), "x": [1.5]})
    ((values, part),) = split_by_values(table, ["day", "n"])
    assert values == {"day": "2026-01-31", "n": "-7"}
    assert directory_of(values) == "day=2026-01-31/n=-7/"
    assert part.to_pydict() == {"x": [1.5]}


@pytest.mark.parametrize(
    ("value", "data_type", "text"),
    [
        (datetime(2026, 1, 31, 23, 0, 0, 7, tzinfo=UTC), pa.timestamp("us", "UTC"), "2026-01-31T23:00:00.000007Z"),
        (datetime(2026, 1, 31, 23), pa.timestamp("us"), "2026-01-31 23:00:00.000000"),
        (Decimal("-1E+3"), pa.decimal128(10, 2), "-1000.00"),
        (1e20, pa.float64(), "1e+20"),
        (math.inf, pa.float64(), "Infinity"),
        (-math.inf, pa.float32(), "-Infinity"),
        (math.nan, pa.float64(), "NaN"),
    ],
)
def test_times_decimals_and_floats_have_the_protocols_form(value, data_type, text):
    table = pa.table({"p": pa.array([value], data_type), "n": [1]})
    assert [values for values, _ in split_by_values(table, ["p"])] == [{"p": text}]


def test_partition_directories_have_no_special_characters():
    assert directory_of({"a b": "../x%/ü"}) == "a_b=.._x___/"
    assert directory_of({"a": None}) == "a=__HIVE_DEFAULT_PARTITION__/"
    assert len(directory_of({"a": "x" * 5000})) < 200
    assert directory_of({}) == ""


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["nowhere"], "partition column nowhere: the columns are a, b, t"),
        (["b"], "partition column b: a direct ingest partitions by text"),
        (["a", "a"], "name each once"),
    ],
)
def test_columns_that_cannot_partition_a_table_are_refused(names, problem):
    schema = pa.schema([("a", pa.string()), ("b", pa.binary()), ("t", pa.timestamp("us"))])
    with pytest.raises(UsageError, match=problem):
        check_partition_columns(schema, names)


def test_a_table_partitioned_by_all_columns_is_refused():
    with pytest.raises(UsageError, match="leave one to store"):
        check_partition_columns(pa.schema([("a", pa.string())]), ["a"])
