"""Tests of rows that are stored between micro-batches.

They are in a log and in pages, and stores have columns over them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_streams import IncompatibleStateError
from millrace_streams.state.chunks import pack_chunk, unpack_chunk
from millrace_streams.state.hashing import hashes_of
from millrace_streams.state.pages import Slot
from millrace_streams.state.rows import Limits
from millrace_streams.state.variables import MemoryVariables
from millrace_streams.steps.packed_state import kept_rows, rows_spec, store_over
from millrace_streams.steps.store import STREAM_TIME, StateDelta, Store, StoreSpec

SPEC = StoreSpec(
    name="s",
    schema=pl.Schema({"key": pl.String(), "__window": pl.Int64(), "n": pl.Int64()}),
    key=("key", "__window"),
    window="__window",
    advance_ms=10,
    retention_ms=30,
)
COUNTS = StoreSpec(name="counts", schema=pl.Schema({"key": pl.Int64(), "n": pl.Int64()}), key=("key",))
HASHES = [458175434, 1311028186, 1779094710]
TINY = Limits(log_bytes=1, page_bytes=700, slot_ms=7)
LARGE = Limits(log_bytes=1 << 20, page_bytes=1 << 20, slot_ms=7)


def frame(spec: StoreSpec, rows: list[Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=spec.schema, orient="row")


def change(spec: StoreSpec, variables: MemoryVariables, rows: list[Any], time_ms: int, limits: Limits) -> None:
    """Apply the changes of a batch to a store."""
    kept = kept_rows(spec, variables, limits)
    store = store_over(spec, kept)
    assert isinstance(store, Store)
    store.apply(StateDelta(rows=frame(spec, rows), stream_time_ms=time_ms))
    kept.save(frame(spec, rows), {STREAM_TIME: store.stream_time_ms}, store.kept_from_ms)


def opened(spec: StoreSpec, variables: MemoryVariables, limits: Limits = TINY) -> Store:
    store = store_over(spec, kept_rows(spec, variables, limits))
    assert isinstance(store, Store)
    return store


batches = st.lists(
    st.lists(
        st.tuples(st.none() | st.sampled_from("abcdef"), st.sampled_from([0, 10, 20, 30]), st.integers(0, 9)),
        unique_by=lambda row: row[:2],
    ),
    max_size=12,
)


@pytest.mark.parametrize("limits", [TINY, LARGE], ids=["in pages", "in the log"])
@given(batches)
def test_stored_rows_are_the_newest_within_the_retention(limits: Limits, script: list[Any]) -> None:
    model: dict[Any, int] = {}
    variables = MemoryVariables()
    for number, rows in enumerate(script):
        change(SPEC, variables, rows, number * 5, limits)
        model.update({(key, window): n for key, window, n in rows})
        alive = {(*group, n) for group, n in model.items() if group[1] + 30 > number * 5 // 10 * 10}
        store = opened(SPEC, variables, limits)
        assert set(store.rows().rows()) == alive
        sizes = [*map(len, variables.log), *map(len, variables.pages.values())]
        assert kept_rows(SPEC, variables, limits).size_bytes == sum(sizes)
        assert store.stream_time_ms == number * 5
        asked = frame(SPEC, [("a", 0, 0), ("b", 10, 0), (None, 20, 0), ("x", 0, 0)]).select(SPEC.key)
        assert set(store.matching(asked).rows()) == {row for row in alive if row[:2] in asked.rows()}


def test_state_that_is_small_has_no_pages_and_few_chunks() -> None:
    variables = MemoryVariables()
    most = 0
    for number in range(100):
        rows = [(key, key) for key in range(1000)] if number == 0 else [(1, number)]
        change(COUNTS, variables, rows, 0, LARGE)
        most = max(most, len(variables.log))
        assert opened(COUNTS, variables).matching(pl.DataFrame({"key": [1]}))["n"].to_list() == [number or 1]
    assert not variables.pages
    assert 2 <= most <= 20


def filled(keys: int, limits: Limits) -> MemoryVariables:
    variables = MemoryVariables()
    change(COUNTS, variables, [(key, key) for key in range(keys)], 0, limits)
    return variables


def test_a_batch_reads_as_many_pages_as_its_keys_fall_into() -> None:
    limits = Limits(log_bytes=1 << 10, page_bytes=16 << 10)
    variables = filled(50_000, limits)
    assert len(variables.pages) >= 50
    assert max(map(len, variables.pages.values())) <= 2 * limits.page_bytes
    kept = kept_rows(COUNTS, variables, limits)
    store = store_over(COUNTS, kept)
    assert isinstance(store, Store)
    assert store.matching(pl.DataFrame({"key": [7, 49_999, 50_000]}))["n"].sort().to_list() == [7, 49_999]
    assert kept.reads <= 3


def test_pages_become_more_as_rows_do_and_small_batches_write_the_log_alone() -> None:
    limits = Limits(log_bytes=4 << 10, page_bytes=4 << 10)
    variables = MemoryVariables()
    for start in range(0, 20_000, 2_000):
        change(COUNTS, variables, [(key, key) for key in range(start, start + 2_000)], 0, limits)
    assert len(variables.pages) >= 50
    # The first small batch finishes the log entries of the large batches.
    change(COUNTS, variables, [(5, 5)], 0, limits)
    before = dict(variables.pages)
    change(COUNTS, variables, [(5, -5)], 0, limits)
    assert variables.pages == before
    assert sorted(opened(COUNTS, variables).rows()["n"].to_list())[:3] == [-5, 0, 1]
    assert opened(COUNTS, variables).rows().height == 20_000


def test_small_batches_spread_the_log_in_turns() -> None:
    # No small batch writes most of the pages, and the log keeps about its maximum length.
    limits = Limits(log_bytes=16 << 10, page_bytes=4 << 10)
    variables = filled(40_000, limits)
    change(COUNTS, variables, [(1, -1)], 0, limits)
    pages, written = len(variables.pages), []
    model = {key: key for key in range(40_000)} | {1: -1}
    for number in range(400):
        before = dict(variables.pages)
        rows = [((number * 7919 + place) % 40_000, number) for place in range(20)]
        change(COUNTS, variables, rows, 0, limits)
        model.update(rows)
        written.append(sum(before.get(page) is not chunk for page, chunk in variables.pages.items()))
    assert 0 < max(written) < pages / 4
    assert sum(map(len, variables.log)) < 2 * limits.log_bytes
    assert dict(opened(COUNTS, variables).rows().rows()) == model


def test_expired_windows_are_dropped_with_their_slot_unread() -> None:
    class Counted(MemoryVariables):
        def read_page(self, page: Any) -> bytes | None:
            assert page.slot >= oldest, "an expired page was read"
            return MemoryVariables.read_page(self, page)

    oldest = -1
    variables = Counted()
    for start in range(0, 400, 10):
        oldest = (start - SPEC.retention_ms) // TINY.slot_ms
        change(SPEC, variables, [(key, start, 1) for key in "abcdef"], start, TINY)
        rows = opened(SPEC, variables).rows()
        assert rows["__window"].min() > start - SPEC.retention_ms
    assert len({page.slot for page in variables.pages}) <= SPEC.retention_ms // TINY.slot_ms + 2


@pytest.mark.parametrize("limits", [TINY, LARGE], ids=["in pages", "in the log"])
@pytest.mark.parametrize(("retention_ms", "expected"), [(20, [50, 60]), (300, [40, 50, 60])])
def test_rows_that_have_expired_are_not_found_under_another_retention(
    retention_ms: int, expected: list[int], limits: Limits
) -> None:
    variables = MemoryVariables()
    for start in range(0, 70, 10):
        change(SPEC, variables, [(key, start, 1) for key in "abcdef"], start, limits)
    store = opened(replace(SPEC, retention_ms=retention_ms), variables, limits)
    asked = pl.DataFrame({"key": ["a"] * 7, "__window": list(range(0, 70, 10))})
    found = store.matching(asked)["__window"].sort().to_list()
    assert found == sorted(set(store.rows()["__window"])) == expected


def test_matching_gives_the_rows_of_these_keys_null_keys_among_them() -> None:
    store = Store(SPEC)
    store.apply(StateDelta(rows=frame(SPEC, [("a", 0, 1), (None, 0, 2), ("b", 0, 3)]), stream_time_ms=0))
    store.apply(StateDelta(rows=frame(SPEC, [("a", 0, 4)]), stream_time_ms=0))
    keys = pl.DataFrame({"key": ["a", None, "c"], "__window": [0, 0, 0]}, schema=dict(list(SPEC.schema.items())[:2]))
    assert sorted(store.matching(keys)["n"].to_list()) == [2, 4]


def test_state_of_other_columns_is_refused() -> None:
    other = StoreSpec(name="counts", schema=pl.Schema({"key": pl.String(), "sum": pl.Float64()}), key=("key",))
    with pytest.raises(
        IncompatibleStateError, match=r"store counts: the state's columns are .* start with a new checkpoint"
    ):
        kept_rows(other, filled(3, LARGE))


def test_state_of_another_version_is_refused() -> None:
    with pytest.raises(
        IncompatibleStateError, match="store s: its state has version 1, but this millrace reads version 2"
    ):
        kept_rows(SPEC, MemoryVariables([bytes([1]) + bytes(15)]))


def test_the_hash_of_keys_stays_what_it_is_for_checkpoints_depend_on_it() -> None:
    keys = pl.DataFrame({"key": ["a", "b", None], "n": [1, -1, 0]})
    assert hashes_of(keys).tolist() == HASHES
    nested = pl.DataFrame({"key": [[1, 2], None, [1]]}, schema={"key": pl.List(pl.Int64)})
    assert hashes_of(nested).tolist() == [2344479191, 853646824, 2375623224]
    assert hashes_of(pl.DataFrame({"x": [0.0, -0.0]})).tolist()[0] == hashes_of(pl.DataFrame({"x": [-0.0]})).tolist()[0]


def test_keys_of_one_bucket_are_spread_over_all_parts() -> None:
    from ...murmur2 import murmur2

    keys = [f"{number}" for number in range(20_000)]
    one = pl.DataFrame({"key": [key for key in keys if murmur2(key.encode()) % 8 == 3]})
    sizes = np.bincount(rows_spec(StoreSpec(name="s", schema=one.schema, key=("key",))).parts_of(one, 16), minlength=16)
    assert sizes.min() > one.height / 16 * 0.7


def test_a_full_slot_gets_four_times_as_many_parts() -> None:
    assert Slot().grown(100, 100) == 1
    assert Slot().grown(101, 100) == 4
    assert Slot(4, 401).grown(7, 100) == 16
    assert Slot(4, 400).grown(1700, 100) == 64


def log_rows(variables: MemoryVariables) -> int:
    return sum(unpack_chunk("counts", rows_spec(COUNTS).schema, chunk).rows.height for chunk in variables.log)


def test_batches_that_are_not_small_spread_all_rows_of_the_log() -> None:
    variables = filled(5000, Limits(log_bytes=1, page_bytes=4 << 10))
    limits = Limits(log_bytes=sum(map(len, variables.pages.values())) // 2, page_bytes=4 << 10)
    before = spread = 0
    for number in range(30):
        change(COUNTS, variables, [((key * 7919 + number) % 5000, number) for key in range(400)], 0, limits)
        rows = log_rows(variables)
        assert rows >= before or rows == 0
        spread += rows == 0
        before = rows
    assert 1 <= spread <= 10
    assert opened(COUNTS, variables).rows().height == 5000


def test_changes_are_appended_until_they_are_half_as_long_as_the_base() -> None:
    variables = MemoryVariables()
    change(COUNTS, variables, [(key, key) for key in range(2000)], 0, LARGE)
    [base] = map(len, variables.log)
    longest = 0
    for number in range(60):
        deltas = sum(map(len, variables.log[1:]))
        rows = [((key * 7919 + number) % 2000, number) for key in range(40)]
        added = len(pack_chunk("delta", frame(COUNTS, rows), kept_rows(COUNTS, variables).facts))
        is_appended = 2 * (deltas + added) <= len(variables.log[0])
        before = len(variables.log)
        change(COUNTS, variables, rows, 0, LARGE)
        assert len(variables.log) == (before + 1 if is_appended else 1)
        longest = max(longest, len(variables.log))
    assert longest > 3
    assert abs(len(variables.log[0]) - base) < base / 4
    assert opened(COUNTS, variables).rows().height == 2000


def test_a_store_in_memory_has_few_parts_and_the_newest_rows() -> None:
    store, model = Store(COUNTS), dict.fromkeys(range(500), 0)
    store.apply(StateDelta(rows=frame(COUNTS, list(model.items())), stream_time_ms=9))
    for number in range(1, 150):
        rows = [(number * 7 % 500, number)] + ([(number % 5, -number)] if number % 3 == 0 else [])
        rows = list(dict(rows).items())
        store.apply(StateDelta(rows=frame(COUNTS, rows), stream_time_ms=number % 20))
        model.update(rows)
        heights = [part.height for part in store._parts]
        assert all(older >= 2 * newer for older, newer in pairwise(heights))
        assert len(heights) <= 10
        assert store.matching(pl.DataFrame({"key": [rows[-1][0]]})).rows() == [rows[-1]]
    store.apply(StateDelta(rows=frame(COUNTS, []), stream_time_ms=0))
    assert dict(store.rows().rows()) == model
    assert store.stream_time_ms == 19
