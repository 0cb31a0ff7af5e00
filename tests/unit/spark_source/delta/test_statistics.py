"""Tests of column statistics.

A bound holds for every value, or is absent. Readers would skip rows because of a wrong bound.
"""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_millrace.delta.statistics import FloatBounds, IndexedColumns, parquet_statistics, statistics_json

FIRST_32 = IndexedColumns()


def statistics(table, indexed=FIRST_32, row_group=3):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=row_group, write_statistics=parquet_statistics(table.schema))
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    floats = FloatBounds.of(table.schema)
    for first in range(0, table.num_rows, row_group):
        for name, bounds in floats.items():
            bounds.add(table.slice(first, row_group).column(name))
    return json.loads(statistics_json(metadata, table.schema, indexed, floats), parse_float=Decimal)


KINDS = {
    "tiny": (pa.int8(), st.integers(-128, 127)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "single": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "decimal": (pa.decimal128(30, 4), st.decimals(-(10**20), 10**20, places=4)),
    "string": (pa.string(), st.text(st.sampled_from("aäz\x7f\ud7ff\uffff\U0001f600\U0010ffff"), max_size=80)),
    "day": (pa.date32(), st.dates()),
    "instant": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "wall": (pa.timestamp("us"), st.datetimes()),
}


def comparable(kind, value):
    """Return a value or bound as a key in Spark's order, with NaN above all, and text by its bytes."""
    if kind in ("single", "double"):
        return (1, 0.0) if math.isnan(value) else (0, float(value))
    if kind == "string":
        return value.encode()
    return value


def bound(kind, value):
    if kind == "day":
        return date.fromisoformat(value)
    if kind in ("instant", "wall"):
        assert value.endswith("Z") == (kind == "instant")
        return datetime.fromisoformat(value)
    return comparable(kind, value)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_every_value_is_within_the_bounds(kind, data):
    data_type, values = KINDS[kind]
    given_values = data.draw(st.lists(st.none() | values, min_size=1, max_size=12))
    found = statistics(pa.table({kind: pa.array(given_values, data_type)}))
    assert found["numRecords"] == len(given_values)
    assert found["nullCount"] == {kind: given_values.count(None)}
    present = [comparable(kind, value) for value in given_values if value is not None]
    if kind in found["minValues"]:
        assert bound(kind, found["minValues"][kind]) <= min(present)
    if kind in found["maxValues"]:
        assert bound(kind, found["maxValues"][kind]) >= max(present)


def test_bounds_are_as_close_as_they_can_be():
    table = pa.table(
        {
            "n": pa.array([3, None, -4, 8], pa.int32()),
            "x": [0.5, 2.25, 1.0, -7.5],
            "price": pa.array([Decimal("12345678901234567.89"), Decimal("0.01"), None, None], pa.decimal128(20, 2)),
            "short": ["b", "a", "c", "d"],
            "long": ["a" * 40, "b" * 40, "c", "ab"],
            "day": pa.array([date(1969, 12, 31), date(2026, 1, 31)] * 2),
            "at": pa.array([1_001, -1, 2_000, 5], pa.timestamp("us", "UTC")),
            "wall": pa.array([1_001, 0, 2_000, 5], pa.timestamp("us")),
            "flag": [True, False, None, True],
            "bytes": [b"a", b"b", None, None],
        }
    )
    found = statistics(table)
    assert found["minValues"] == {
        "n": -4,
        "x": Decimal("-7.5"),
        "price": Decimal("0.01"),
        "short": "a",
        "long": "a" * 32,
        "day": "1969-12-31",
        "at": "1969-12-31T23:59:59.999Z",
        "wall": "1970-01-01T00:00:00.000",
    }
    assert found["maxValues"] == {
        "n": 8,
        "x": Decimal("2.25"),
        "price": Decimal("12345678901234567.89"),
        "short": "d",
        "long": "c",
        "day": "2026-01-31",
        "at": "1970-01-01T00:00:00.002Z",
        "wall": "1970-01-01T00:00:00.002",
    }
    assert found["nullCount"]["flag"] == 1
    assert found["nullCount"]["bytes"] == 2


def test_a_long_text_has_a_bound_above_it():
    found = statistics(pa.table({"s": ["b" * 33, "a"]}))
    assert found["maxValues"] == {"s": "b" * 32 + "\U0010ffff"}


def test_nan_leaves_the_lower_bound_and_takes_the_upper():
    found = statistics(pa.table({"x": [1.0, math.nan, 3.0]}))
    assert (found["minValues"], found["maxValues"]) == ({"x": Decimal("1.0")}, {})


def test_a_row_group_of_nulls_does_not_hide_the_bounds_of_the_others():
    found = statistics(pa.table({"n": [None, None, None, 5, 6, None]}), row_group=3)
    assert (found["minValues"], found["maxValues"], found["nullCount"]) == ({"n": 5}, {"n": 6}, {"n": 4})


def test_fields_of_structs_are_nested_and_collections_have_none():
    table = pa.table(
        {
            "place": pa.array(
                [{"name": "x", "at": {"lat": 1.5, "n": 1}}, None, {"name": None, "at": {"lat": 2, "n": 9}}]
            ),
            "tags": pa.array([["a"], [], None]),
            "counts": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "after": [1, 2, 3],
        }
    )
    found = statistics(table)
    assert found["minValues"] == {"place": {"name": "x", "at": {"n": 1}}, "after": 1}
    assert found["maxValues"] == {"place": {"name": "x", "at": {"n": 9}}, "after": 3}
    assert found["nullCount"] == {"place": {"name": 2, "at": {"n": 1}}, "after": 0}


def test_only_indexed_columns_have_statistics():
    table = pa.table({"a": [1], "s": pa.array([{"x": 1, "y": 2}]), "b": [3]})
    assert statistics(table, IndexedColumns(2))["nullCount"] == {"a": 0, "s": {"x": 0}}
    assert statistics(table, IndexedColumns(0))["nullCount"] == {}
    assert statistics(table, IndexedColumns(-1))["nullCount"] == {"a": 0, "s": {"x": 0, "y": 0}, "b": 0}
    assert statistics(table, IndexedColumns(names=frozenset({"s", "b"})))["nullCount"] == {
        "s": {"x": 0, "y": 0},
        "b": 0,
    }
    assert statistics(table, IndexedColumns(names=frozenset({"s.y"})))["nullCount"] == {"s": {"y": 0}}
