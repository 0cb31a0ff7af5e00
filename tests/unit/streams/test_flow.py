"""Tests of the order of records in a batch.

Marks and the numbers of arriving records determine the order.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace_streams.layout import Layout
from millrace_streams.runners.shuffle import arrive
from millrace_streams.steps.batch import OFFSET, PARTITION, TIMESTAMP, Batch
from millrace_streams.steps.flow import FIXED, RELEASED, ROOT, Flow, in_order, interleave

LAYOUT = Layout(schema=pa.schema([("row", pa.int64())]), key=(), bucket_columns=None, value="row")
small = st.integers(0, 2)
marks = st.lists(st.tuples(*[small] * (FIXED + 1)), max_size=12)
records = st.lists(st.tuples(small, st.integers(0, 5), small), max_size=12)
"""Rows: partition, offset and time of the record."""


@given(marks)
def test_rows_are_ordered_by_their_marks_from_the_left_and_equal_ones_keep_their_order(rows: list[tuple[int, ...]]):
    order = in_order(np.asarray(rows, dtype=np.int64).reshape(-1, FIXED + 1))
    assert order.tolist() == sorted(range(len(rows)), key=lambda row: _compared(rows[row]))


@given(st.lists(marks, min_size=1, max_size=3))
def test_rows_of_several_parents_take_turns_by_their_marks(parents: list[list[tuple[int, ...]]]):
    flows = [
        Flow(Batch.of_lists(LAYOUT, [None] * len(rows), [0] * len(rows), [0] * len(rows)), _sorted(rows))
        for rows in parents
    ]
    ordered, sides, rows = interleave(flows)
    turns = [(tuple(mark), side, row) for side, flow in enumerate(flows) for row, mark in enumerate(flow.marks)]
    expected = sorted(turns, key=lambda turn: _compared(turn[0]))
    found = zip(map(tuple, ordered), sides.tolist(), rows.tolist(), strict=True)
    assert list(found) == expected


@given(records)
def test_arriving_rows_are_numbered_by_the_order_of_their_records(rows: list[tuple[int, int, int]]):
    # The time of a record is a function of its position.
    times = {(partition, offset): time for partition, offset, time in rows}
    frame = pl.DataFrame(
        {
            "row": range(len(rows)),
            PARTITION: [partition for partition, _, _ in rows],
            OFFSET: [offset for _, offset, _ in rows],
            TIMESTAMP: [times[partition, offset] for partition, offset, _ in rows],
        },
        schema={"row": pl.Int64, PARTITION: pl.Int32, OFFSET: pl.Int64, TIMESTAMP: pl.Int64},
    )
    flows, roots = arrive({"node": frame}, {"node": LAYOUT}, {"node": 0}, bucket=0, forks=0)

    newest = {
        place: max(times[place[0], offset] for offset in range(6) if (place[0], offset) in times and offset <= place[1])
        for place in times
    }
    places = sorted(times, key=lambda place: (newest[place], place))
    assert list(zip(roots.partition.tolist(), roots.offset.tolist(), strict=True)) == places
    expected = sorted(range(len(rows)), key=lambda row: places.index(rows[row][:2]))
    assert flows["node"].batch.values == expected
    assert flows["node"].marks[:, ROOT].tolist() == [places.index(rows[row][:2]) for row in expected]


def _sorted(rows: list[tuple[int, ...]]) -> np.ndarray:
    return np.asarray(sorted(rows, key=_compared), dtype=np.int64).reshape(-1, FIXED + 1)


def _compared(mark: tuple[int, ...]) -> tuple[int, ...]:
    """Return the marks that decide the order."""
    return mark[:RELEASED] + mark[RELEASED + 1 :]
