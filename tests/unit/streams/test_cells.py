"""Tests of the round trip of a value through columns.

A converted value is the value that its columns give back.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from enum import IntEnum
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams.frames.cells import are_exact, key_conversion, value_conversion
from millrace_streams.frames.codec import columns_of, keys_of, values_of
from millrace_streams.frames.evaluation import polars_schema
from millrace_streams.layout import WINDOW_TYPE, Layout
from millrace_streams.serdes import JSON, STRING
from millrace_streams.steps.results import MISFITS
from millrace_streams.windows import FOREVER_MS, Windowed


class Level(IntEnum):
    LOW = 1


COLUMNS = [
    *(pa.field("v", data_type) for data_type in (pa.string(), pa.binary(), pa.bool_(), pa.float64(), pa.float32())),
    *(pa.field("v", data_type) for data_type in (pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64())),
    *(pa.field("v", data_type) for data_type in (pa.decimal128(10, 2), pa.date32(), pa.timestamp("us"))),
    *(pa.field("v", pa.timestamp(unit, tz="UTC")) for unit in ("us", "ms")),
    pa.field("v", pa.list_(pa.float64())),
    pa.field("v", pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]))),
    pa.field("v", pa.struct([("a", pa.float64()), ("b", pa.string())])),
    JSON.field("v"),
]
times = st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(2100, 1, 1))
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(-300, 300),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    st.binary(max_size=3),
    st.decimals(-1000, 1000, places=2),
    st.decimals(-1000, 1000, places=4),
    st.dates(),
    times,
    times.map(lambda time: time.replace(tzinfo=dt.UTC)),
    st.sampled_from([Level.LOW, np.int64(3), np.float64(2.5), np.float32(0.1), np.True_, Decimal(1)]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner | st.none(), max_size=2)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from(["a", "b", "c", 1]), inner | st.none(), max_size=2)
    ),
    max_leaves=4,
)


def layout(column: pa.Field) -> Layout:
    return Layout(schema=pa.schema([STRING.field("k"), column]), key=("k",), bucket_columns=None, value="v")


def result_of(function: Any, *arguments: Any) -> str:
    """Return a result as text, which tells 3 from 3.0; one text for all errors of values that do not fit."""
    try:
        return repr(function(*arguments))
    except MISFITS:
        return "does not fit"


def frame_of(of: Layout, key: Any, value: Any) -> pl.DataFrame:
    frame = pl.DataFrame(columns_of(of, [key], [value]))
    if frame.schema != polars_schema(of.schema):
        raise TypeError(frame.schema)
    return frame


def through_columns(of: Layout, key: Any, value: Any) -> Any:
    return values_of(of, frame_of(of, key, value))[0]


@pytest.mark.parametrize("column", COLUMNS, ids=str)
@settings(max_examples=60)
@given(value=values)
def test_a_converted_value_is_what_the_column_gives_back(column: pa.Field, value: Any) -> None:
    bare, row = layout(column), replace(layout(column), value=None)
    expected = result_of(through_columns, bare, "x", value)
    assert result_of(value_conversion(bare), "x", value) == expected
    assert result_of(value_conversion(row), "x", {"v": value}) == result_of(through_columns, row, "x", {"v": value})
    if expected != "does not fit" and are_exact(column, [value]):
        assert repr(value) == expected


@pytest.mark.parametrize("column", COLUMNS, ids=str)
@settings(max_examples=40)
@given(key=values)
def test_a_converted_key_is_what_the_column_gives_back_and_hashable(column: pa.Field, key: Any) -> None:
    keyed = Layout(schema=pa.schema([column]), key=("v",), bucket_columns=None)
    expected = result_of(lambda: keys_of(keyed, frame_of(keyed, key, None))[0])
    assert result_of(key_conversion(keyed), key) == expected
    if expected != "does not fit":
        converted = key_conversion(keyed)(key)
        [read] = keys_of(keyed, frame_of(keyed, key, None))
        assert (hash(converted), type(converted)) == (hash(read), type(read)) or converted != converted


@pytest.mark.parametrize("end", [17, 253402300799999, 253402300800000, FOREVER_MS])
def test_a_row_has_the_columns_of_its_key_and_window(end: int) -> None:
    fields = [
        pa.field("a", pa.int64()),
        STRING.field("b"),
        *(pa.field(f"window_{b}", WINDOW_TYPE) for b in ("start", "end")),
    ]
    for key in (("a",), ("a", "b")):
        kept = [each for each in fields if each.name in key or each.name.startswith("window")]
        of = Layout(schema=pa.schema([*kept, pa.field("n", pa.int64())]), key=key, bucket_columns=None, windowed=True)
        windowed = Windowed(1 if len(key) == 1 else (1, None), 5, end)
        assert repr(value_conversion(of)(windowed, {"n": 1})) == repr(through_columns(of, windowed, {"n": 1}))
