"""Stores and their packed chunks."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_streams import IncompatibleStateError
from millrace_streams.steps.chunks import load_store, save_delta
from millrace_streams.steps.store import StateDelta, Store, StoreSpec

SPEC = StoreSpec(
    name="s",
    schema=pl.Schema({"key": pl.String(), "__window": pl.Int64(), "n": pl.Int64()}),
    key=("key", "__window"),
    window="__window",
    advance_ms=10,
    retention_ms=30,
)


def delta(rows: list, stream_time_ms: int) -> StateDelta:
    return StateDelta(rows=pl.DataFrame(rows, schema=SPEC.schema, orient="row"), stream_time_ms=stream_time_ms)


deltas = st.lists(
    st.lists(
        st.tuples(st.none() | st.sampled_from("abc"), st.sampled_from([0, 10, 20, 30]), st.integers(0, 9)),
        unique_by=lambda row: row[:2],
    ),
    max_size=12,
)


@given(deltas)
def test_chunks_hold_the_newest_rows_that_are_within_retention(batches):
    model: dict = {}
    chunks: list = []
    for time_ms, rows in enumerate(batches):
        store = load_store(SPEC, chunks)
        change = delta(rows, time_ms * 5)
        store.apply(change)
        write = save_delta(store, chunks, change)
        chunks = list(write.chunks) if write.replace else chunks + list(write.chunks)
        model.update({(key, window): n for key, window, n in rows})
        alive = {(*group, n) for group, n in model.items() if group[1] + 30 > time_ms * 5 // 10 * 10}
        assert set(load_store(SPEC, chunks).rows().rows()) == alive
        assert load_store(SPEC, chunks).stream_time_ms == time_ms * 5


def test_small_deltas_are_appended_and_many_are_compacted():
    chunks: list = []
    replaced = []
    for number in range(50):
        store = load_store(SPEC, chunks)
        rows = [(f"k{key}", 0, key) for key in range(1000)] if number == 0 else [("k1", 0, number)]
        change = delta(rows, 0)
        store.apply(change)
        write = save_delta(store, chunks, change)
        replaced.append(write.replace)
        chunks = list(write.chunks) if write.replace else chunks + list(write.chunks)
    assert replaced[0]
    assert 1 <= sum(replaced[1:]) <= 10
    assert load_store(SPEC, chunks).matching(pl.DataFrame({"key": ["k1"], "__window": [0]}))["n"].to_list() == [49]


def test_matching_gives_the_rows_of_these_keys_null_keys_among_them():
    store = Store(SPEC)
    store.apply(delta([("a", 0, 1), (None, 0, 2), ("b", 0, 3)], 0))
    store.apply(delta([("a", 0, 4)], 0))
    keys = pl.DataFrame({"key": ["a", None, "c"], "__window": [0, 0, 0]}, schema=dict(list(SPEC.schema.items())[:2]))
    assert sorted(store.matching(keys)["n"].to_list()) == [2, 4]


def test_state_of_other_columns_is_refused():
    other = StoreSpec(name="s", schema=pl.Schema({"key": pl.String(), "sum": pl.Float64()}), key=("key",))
    store = Store(SPEC)
    change = delta([("a", 0, 1)], 0)
    store.apply(change)
    chunks = list(save_delta(store, [], change).chunks)
    with pytest.raises(
        IncompatibleStateError, match=r"store s: the state's columns are .* begin with a new checkpoint"
    ):
        load_store(other, chunks)


def test_state_of_another_version_is_refused():
    with pytest.raises(IncompatibleStateError, match="store s: its state has version 9, this millrace reads version 1"):
        load_store(SPEC, [bytes([9]) + bytes(15)])
