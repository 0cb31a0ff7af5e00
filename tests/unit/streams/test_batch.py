"""Tests of a batch's columns and lists.

Both agree in any order of access.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_streams.layout import Layout
from millrace_streams.serdes import JSON
from millrace_streams.steps.batch import TIMESTAMP, TOMBSTONE, Batch, concatenate

SCALAR = Layout(
    schema=pa.schema([("key", pa.string()), ("value", pa.int64())]), key=("key",), bucket_columns=None, value="value"
)
ROWS = Layout(
    schema=pa.schema([("k", pa.string()), ("l", pa.int64()), ("x", pa.float64())]), key=("k", "l"), bucket_columns=None
)
Record = tuple[Any, Any, int]


def row_of(k: str, number: int, x: float) -> dict[str, Any]:
    return {"k": k, "l": number, "x": x}


scalar_records = st.lists(
    st.tuples(st.none() | st.sampled_from("abc"), st.none() | st.integers(0, 9), st.integers(0, 99)), max_size=8
)
row_records = st.lists(
    st.tuples(
        st.tuples(st.sampled_from("ab"), st.integers(0, 2)), st.none() | st.floats(0, 1, width=16), st.integers(0, 99)
    ).map(lambda cells: (cells[0], None if cells[1] is None else row_of(*cells[0], cells[1]), cells[2])),
    max_size=8,
)


def batch_of(layout: Layout, records: list[Record], *, columns: bool) -> Batch:
    keys, values, times = ([record[part] for record in records] for part in range(3))
    batch = Batch.of_lists(layout, keys, values, times)
    return Batch.of_frame(layout, batch.frame) if columns else batch


def assert_is(batch: Batch, expected: list[Record], asked: list[str]) -> None:
    """Ask for the parts in the given order, and then compare all of them."""
    for part in asked:
        getattr(batch, part)
    assert list(zip(batch.keys, batch.values, batch.times, strict=True)) == expected
    assert batch.frame.height == batch.height == len(expected)
    assert batch.frame[TIMESTAMP].to_list() == [time_ms for _, _, time_ms in expected]
    again = Batch.of_frame(batch.layout, batch.frame)
    assert again.present == batch.present == [value is not None for _, value, _ in expected]
    assert list(zip(again.keys, again.values, again.times, strict=True)) == expected


@pytest.mark.parametrize(("layout", "records"), [(SCALAR, scalar_records), (ROWS, row_records)], ids=["value", "row"])
@pytest.mark.parametrize("columns", [True, False])
@given(data=st.data())
def test_rows_that_are_taken_have_equal_columns_and_lists(
    layout: Layout, records: Any, columns: bool, data: st.DataObject
) -> None:
    expected: list[Record] = data.draw(records)
    batch = batch_of(layout, expected, columns=columns)
    for _ in range(data.draw(st.integers(0, 3))):
        rows = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=6)) if expected else []
        batch = batch.take(np.asarray(rows, dtype=np.int64) if data.draw(st.booleans()) else rows)
        expected = [expected[row] for row in rows]
        getattr(batch, data.draw(st.sampled_from(["keys", "values", "times", "frame", "height"])))
    assert_is(batch, expected, data.draw(st.permutations(["keys", "values", "times", "frame"])))


@pytest.mark.parametrize("columns", [True, False])
@given(records=scalar_records, data=st.data())
def test_other_values_go_with_the_same_keys_and_times(
    columns: bool, records: list[Record], data: st.DataObject
) -> None:
    values = [None if value is None else value + 1 for _, value, _ in records]
    batch = batch_of(SCALAR, records, columns=columns).with_values(values)
    expected = [(key, value, time_ms) for (key, _, time_ms), value in zip(records, values, strict=True)]
    rows = [row for row in range(len(records)) if row % 2]
    if data.draw(st.booleans()):
        batch, expected = batch.take(rows), [expected[row] for row in rows]
    assert_is(batch, expected, data.draw(st.permutations(["keys", "values", "times", "frame"])))


@pytest.mark.parametrize("columns", [True, False])
@given(records=scalar_records, data=st.data())
def test_other_keys_go_with_the_same_values_and_times(
    columns: bool, records: list[Record], data: st.DataObject
) -> None:
    layout = Layout(
        schema=pa.schema([("key", pa.int64()), ("value", pa.int64())]), key=("key",), bucket_columns=None, value="value"
    )
    keys = list(range(len(records)))
    batch = batch_of(SCALAR, records, columns=columns).with_keys(keys, layout)
    expected = [(key, value, time_ms) for key, (_, value, time_ms) in zip(keys, records, strict=True)]
    rows = [row for row in keys if row % 2]
    if data.draw(st.booleans()):
        batch, expected = batch.take(rows), [expected[row] for row in rows]
    assert_is(batch, expected, data.draw(st.permutations(["keys", "values", "times", "frame"])))


def test_rows_that_are_taken_are_in_columns_as_their_source_is() -> None:
    records: list[Record] = [("a", 1, 5), ("b", 2, 6)]
    for columns in (True, False):
        batch = batch_of(SCALAR, records, columns=columns)
        assert batch.in_columns == batch.take([1]).in_columns == batch.take([1, 0]).take([0]).in_columns == columns


def test_values_may_become_rows_of_another_layout_with_the_same_key() -> None:
    batch = batch_of(SCALAR, [("a", 1, 5), ("b", None, 6)], columns=True)
    layout = Layout(schema=pa.schema([("key", pa.string()), ("x", pa.float64())]), key=("key",), bucket_columns=None)
    rows = batch.with_values([{"x": 0.5}, None], layout)
    assert rows.frame.rows() == [("a", 0.5, 5, False), ("b", None, 6, True)]
    assert rows.frame.columns == ["key", "x", TIMESTAMP, TOMBSTONE]


@pytest.mark.parametrize("columns", [[True, True], [True, False], [False, False]])
@given(one=scalar_records, other=scalar_records)
def test_batches_are_put_one_after_the_other(columns: list[bool], one: list[Record], other: list[Record]) -> None:
    parts = [batch_of(SCALAR, records, columns=each) for records, each in zip((one, other), columns, strict=True)]
    assert_is(concatenate(SCALAR, parts), one + other, [])


def test_changes_keep_what_they_replace_and_which_are_the_newest() -> None:
    batch = batch_of(SCALAR, [("a", 1, 5), ("a", 2, 6), ("b", 3, 7)], columns=True)
    changes = batch.with_changes(SCALAR, [None, 1, None], [True, True, False]).take([2, 1])
    assert (changes.olds, changes.latest) == ([None, 1], [False, True])
    assert changes.with_layout(SCALAR).olds == [None, None]


@given(scalar_records)
def test_rows_with_a_key_are_found_in_columns_and_in_lists(records: list[Record]) -> None:
    there = [row for row, (key, _, _) in enumerate(records) if key is not None]
    for columns in (True, False):
        assert batch_of(SCALAR, records, columns=columns).rows_with_key().tolist() == there


@pytest.mark.parametrize("olds", [[None, {"x": 0.5, "l": 1, "k": "a"}], [{"x": 2.0, "more": 1, "l": 1, "k": "a"}] * 2])
def test_canonical_changes_have_the_layouts_columns_whatever_a_function_returned(olds: list[Any]) -> None:
    values = [{"x": 1.0, "l": 1, "k": "a", "other": 7}, None]
    batch = Batch.of_lists(ROWS, [("a", 1)] * 2, values, [5, 6], olds=olds, latest=[True, False]).canonical()
    assert batch.values == [row_of("a", 1, 1.0), None]
    assert batch.olds == [None if old is None else row_of("a", 1, old["x"]) for old in olds]
    assert [list(old) for old in batch.olds if old is not None] == [["k", "l", "x"]] * sum(map(bool, olds))
    assert batch.latest == [True, False]
    assert Batch.of_frame(ROWS, batch.frame).canonical().olds == [None, None]


@pytest.mark.parametrize("columns", [True, False])
def test_changes_that_are_put_one_after_the_other_keep_what_they_replace(columns: bool) -> None:
    one, other = (batch_of(SCALAR, [("a", number, number)], columns=columns) for number in (1, 2))
    first, second = one.with_changes(SCALAR, [7], [False]), other.with_changes(SCALAR, [None], None)
    whole = concatenate(SCALAR, [first, second])
    assert (whole.values, whole.olds, whole.latest) == ([1, 2], [7, None], [False, True])
    plain = concatenate(SCALAR, [one, other])
    assert (plain.values, plain.olds, plain.latest) == ([1, 2], [None, None], None)


@pytest.mark.parametrize("columns", [True, False])
def test_rows_may_get_other_keys_as_well(columns: bool) -> None:
    records: list[Record] = [(("a", 1), row_of("a", 1, 0.5), 5), (("b", 2), row_of("b", 2, 1.5), 6)]
    layout = Layout(
        schema=pa.schema([("k", pa.string()), ("l", pa.int64()), ("x", pa.float64())]), key=("k",), bucket_columns=None
    )
    batch = batch_of(ROWS, records, columns=columns).with_keys(["c", "d"], layout)
    assert (batch.keys, batch.times) == (["c", "d"], [5, 6])
    assert batch.frame.select("k", "l", "x").rows() == [("c", 1, 0.5), ("d", 2, 1.5)]


@pytest.mark.parametrize("columns", [True, False])
def test_a_row_without_a_value_has_none_under_another_key(columns: bool) -> None:
    records: list[Record] = [(("a", 1), None, 5), (("b", 2), row_of("b", 2, 1.5), 6)]
    layout = Layout(schema=ROWS.schema, key=("k",), bucket_columns=None)
    batch = batch_of(ROWS, records, columns=columns).with_keys(["c", "d"], layout)
    assert Batch.of_frame(layout, batch.frame).present == [False, True]


@pytest.mark.parametrize("columns", [True, False])
def test_a_json_text_of_null_is_no_value(columns: bool) -> None:
    schema = pa.schema([("key", pa.string()), JSON.field("value")])
    frame = pl.DataFrame({"key": ["a", "b", "c"], "value": ["null", "7", None], TIMESTAMP: [5, 6, 7]})
    batch = Batch.of_frame(Layout(schema=schema, key=("key",), bucket_columns=None, value="value"), frame)
    if not columns:
        batch = Batch.of_lists(batch.layout, batch.keys, batch.values, batch.times)
    assert batch.present == [False, True, False]
