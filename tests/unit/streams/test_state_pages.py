"""Tests of pages.

Rows are stored by time slot and part of the key, and expired slots are dropped.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from millrace_streams.state.hashing import hashes_of
from millrace_streams.state.pages import GROWTH, NO_SLOT, RowsSpec, Slot, split

SCHEMA = pl.Schema({"key": pl.String(), "time": pl.Int64(), "n": pl.Int64()})
TIMED = RowsSpec(name="s", schema=SCHEMA, identity=("key", "time"), key=("key",), time="time", retention_ms=80)
TIMELESS = RowsSpec(name="s", schema=SCHEMA, identity=("key",), key=("key",))
ROWS = pl.DataFrame([("a", 9, 1), ("b", 10, 2), ("c", 11, 3)], schema=SCHEMA, orient="row")


@pytest.mark.parametrize(("kept_from_ms", "left"), [(9, "abc"), (10, "bc"), (11, "c"), (12, "")])
def test_a_row_of_just_the_time_from_which_rows_are_kept_is_kept(kept_from_ms: int, left: str) -> None:
    assert "".join(TIMED.since(ROWS, kept_from_ms)["key"]) == left
    assert TIMELESS.since(ROWS, kept_from_ms).equals(ROWS)


def test_a_row_of_all_time_is_kept_for_ever() -> None:
    spec = RowsSpec(name="s", schema=SCHEMA, identity=("key",), key=("key",), time="until")
    rows = pl.DataFrame({"until": [10, None]}, schema={"until": pl.Datetime("us")}).with_columns(
        pl.col("until").dt.offset_by("9ms990us")
    )
    assert spec.times_of(rows).to_list() == [10, 2**63 - 1]
    assert spec.since(rows, 11).height == 1


@pytest.mark.parametrize(
    ("size", "added", "parts"),
    [(0, 100, 1), (100, 100, 1), (101, 0, 4), (0, 101, 4), (400, 1, 4), (401, 400, 16), (399, 401, 16), (1601, 0, 64)],
)
def test_parts_become_four_times_as_many_when_they_are_full(size: int, added: int, parts: int) -> None:
    assert GROWTH == 4
    assert Slot(1, size).grown(added, 100) == parts
    assert Slot(16, size).grown(added, 100) == max(16, parts), "never fewer"


@pytest.mark.parametrize(
    ("retention_ms", "shortest_ms", "expected"), [(80, 1, 10), (80, 10, 10), (80, 11, 11), (7, 3, 3)]
)
def test_a_slot_is_an_eighth_of_the_retention_or_the_shortest(
    retention_ms: int, shortest_ms: int, expected: int
) -> None:
    spec = RowsSpec(name="s", schema=SCHEMA, identity=("key",), key=("key",), time="time", retention_ms=retention_ms)
    assert spec.slot_ms(shortest_ms) == expected


def test_rows_have_the_slot_of_their_time_and_the_part_of_their_keys_hash() -> None:
    assert TIMED.slots_of(ROWS, 10).tolist() == [0, 1, 1]
    assert TIMELESS.slots_of(ROWS, 10).tolist() == [NO_SLOT] * 3
    assert TIMED.parts_of(ROWS, 1).tolist() == [0, 0, 0]
    hashes = hashes_of(ROWS.select("key"))
    for parts in (4, 16):
        assert TIMED.parts_of(ROWS, parts).tolist() == [int(each) % parts for each in hashes]


@pytest.mark.parametrize("numbers", [[2, 2, 2], [2, 1, 2], [1, 2, 2], [3, 2, 1]])
def test_rows_are_split_by_number_and_keep_their_order(numbers: list[int]) -> None:
    found = [(number, part["key"].to_list()) for number, part in split(ROWS, np.array(numbers))]
    keys = dict(zip("abc", numbers, strict=True))
    assert found == [(number, [key for key in keys if keys[key] == number]) for number in sorted(set(numbers))]
    assert all(part.schema == SCHEMA for _, part in split(ROWS, np.array(numbers)))
    assert list(split(ROWS.clear(), np.array([], dtype=np.int64))) == []
