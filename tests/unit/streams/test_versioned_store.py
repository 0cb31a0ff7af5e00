"""Tests of the versioned store against a list of all versions.

The times are below, at and above every boundary.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace_streams.layout import Layout
from millrace_streams.state.rows import LIMITS, Limits
from millrace_streams.state.variables import MemoryVariables
from millrace_streams.steps.packed_state import kept_rows, store_over
from millrace_streams.stores import StoreSpec, VersionedStore
from millrace_streams.stores.base import Stored
from millrace_streams.stores.below import packed
from millrace_streams.stores.versioned import VersionedRecord, Versions

LAYOUT = Layout(
    schema=pa.schema([("key", pa.string()), ("value", pa.int64())]), key=("key",), bucket_columns=None, value="value"
)
HISTORY_MS = 100


def opened() -> VersionedStore:
    return VersionedStore(StoreSpec(name="v", kind="versioned", layout=LAYOUT, retention_ms=HISTORY_MS))


@pytest.mark.parametrize(
    ("time_ms", "expected"), [(899, None), (900, False), (901, False), (999, False), (1000, True), (1001, True)]
)
def test_a_version_from_before_the_history_is_refused(time_ms: int, expected: bool | None) -> None:
    store = opened()
    assert store.put("a", 1, 1000) is True
    assert store.oldest_ms == 900
    assert store.put("a", 2, time_ms) is expected
    assert store.get("a") == (Stored(2, time_ms) if expected else Stored(1, 1000))
    assert store.oldest_ms == max(time_ms, 1000) - HISTORY_MS


@pytest.mark.parametrize(
    ("as_of_ms", "expected"),
    [
        (None, Stored(3, 1000)), (1001, Stored(3, 1000)), (1000, Stored(3, 1000)), (999, Stored(2, 950)),
        (950, Stored(2, 950)), (949, Stored(1, 920)), (920, Stored(1, 920)), (919, None), (900, None), (899, None),
    ],
)  # fmt: skip
def test_a_look_up_gives_the_version_valid_at_the_time(as_of_ms: int | None, expected: Stored | None) -> None:
    store = opened()
    for value, time_ms in ((1, 920), (3, 1000), (2, 950)):
        store.put("a", value, time_ms)
    assert store.get("a", as_of_ms) == expected
    assert store.get("b", as_of_ms) is None


@pytest.mark.parametrize(
    ("as_of_ms", "expected"),
    [(499, None), (500, Stored(1, 500)), (501, Stored(1, 500)), (1899, Stored(1, 500)), (1900, Stored(1, 500))],
)
def test_the_newest_version_answers_also_for_times_before_the_history(as_of_ms: int, expected: Stored | None) -> None:
    store = opened()
    store.put("a", 1, 500)
    store.put("b", 1, 2000)
    assert store.get("a", as_of_ms) == expected


def test_a_version_without_a_value_ends_the_one_before() -> None:
    store = opened()
    assert store.put("a", 1, 1000) is True
    assert store.put("a", None, 1010) is True
    assert store.get("a") is None
    assert store.get("a", 1009) == Stored(1, 1000)
    assert store.get("a", 1010) is None
    assert list(store.entries()) == []
    assert store.put("b", 2, 1005) is True
    assert list(store.entries()) == [("b", Stored(2, 1005))]
    assert Versions().newest() is None


@pytest.mark.parametrize(("oldest_ms", "left"), [(19, [10, 20, 30]), (20, [20, 30]), (21, [20, 30]), (30, [30])])
def test_versions_that_were_over_before_the_history_are_forgotten(oldest_ms: int, left: list[int]) -> None:
    versions = Versions([10, 20, 30], [1, 2, 3])
    versions.prune(oldest_ms)
    assert (versions.times, versions.values) == (left, [time // 10 for time in left])
    versions.prune(5)
    assert versions.times == left


def test_a_batch_sees_a_keys_versions_from_before_it() -> None:
    store = opened()
    assert store.before("a") is None
    store.put("a", 1, 1000)
    assert store.before("a") is None
    change = store.commit()
    assert change.touched
    assert change.entries == {"a": Versions([1000], [1])}
    before = store.before("a")
    assert before == Versions([1000], [1])
    store.put("a", 2, 1001)
    assert store.before("a") == before, "a copy, which later versions do not change"
    store.put("a", 3, 1002)
    assert store.before("a") == before
    again = opened()
    again.restore("a", before)
    assert list(again.packed_entries()) == [("a", before)]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 9), st.integers(0, 300)), max_size=30),
    st.lists(st.integers(-1, 301), max_size=8),
)
@example([("a", 0, 1), ("a", None, 1), ("a", None, 0)], [])
def test_look_ups_within_the_history_equal_those_of_all_versions(
    script: list[tuple[str, int | None, int]], asked: list[int]
) -> None:
    store, model, newest = opened(), {"a": {}, "b": {}}, -1  # type: dict[str, dict[int, int | None]]
    for key, value, time_ms in script:
        is_late = time_ms < newest - HISTORY_MS
        verdict = store.put(key, value, time_ms)
        assert (verdict is None) == is_late
        if not is_late:
            newest = max(newest, time_ms)
            is_newest = time_ms >= max(model[key], default=time_ms)
            before = max((each for each in model[key] if each < time_ms), default=None)
            ends_value = before is not None and model[key][before] is not None
            if value is None and model[key].get(time_ms) is not None and is_newest and not ends_value:
                del model[key][time_ms]  # the test of deletions below shows this rule
            else:
                model[key][time_ms] = value
            assert verdict == is_newest
    for key, versions in model.items():
        for as_of_ms in [*asked, *versions, None]:
            known = [time for time in versions if as_of_ms is None or time <= as_of_ms]
            valid = max(known, default=None)
            expected = None if valid is None or versions[valid] is None else Stored(versions[valid], valid)
            is_newest = valid is not None and valid == max(versions) and expected is not None
            if as_of_ms is not None and as_of_ms < newest - HISTORY_MS and not is_newest:
                expected = None
            assert store.get(key, as_of_ms) == expected


def test_a_version_reads_as_value_and_time() -> None:
    assert str(VersionedRecord("x", 7)) == "x@7"


@pytest.mark.parametrize(
    ("before", "is_newest"),
    [
        ([], True),  # nothing is left of the key
        ([(None, 5)], True),
        ([(None, 8), (2, 9)], False),  # the deletion is known as the end of this value
        ([(None, 9)], False),
    ],
)
def test_a_deletion_with_the_time_of_the_newest_value_is_known_only_as_the_end_of_a_value_before_it(
    before: list[tuple[int | None, int]], is_newest: bool
) -> None:
    # As in Kafka Streams, found by random records (KAFKA_STREAMS_SEED=1795772855804873287, topology "versions").
    store = opened()
    for value, time_ms in [*before, (1, 10), (None, 10)]:
        assert store.put("a", value, time_ms) is True
    assert store.get("a") is None
    assert store.put("a", 3, 7) is is_newest
    assert store.get("a") == (Stored(3, 7) if is_newest else None)


@pytest.mark.parametrize(("newest_ms", "is_kept"), [(1110, True), (1111, False)])
def test_a_deleted_key_is_forgotten_when_its_deletion_is_older_than_the_history(newest_ms: int, is_kept: bool) -> None:
    store = opened()
    for key, value, time_ms in (
        ("a", 1, 1000),
        ("a", None, 1010),
        ("b", 1, 1000),
        ("c", None, 1020),
        ("d", None, 1000),
    ):
        store.put(key, value, time_ms)
    store.commit()
    store.put("d", 2, newest_ms)
    # Until its end, a batch may ask for a version from before it.
    assert store.before("a") is not None
    change = store.commit()
    assert list(change.entries) == ["d"]
    assert dict(store.packed_entries()).keys() == ({"a", "b", "c", "d"} if is_kept else {"b", "c", "d"})
    assert store.put("a", None, 1009) is None or is_kept
    assert store.put("a", 3, 1011) is True
    assert store.get("a") == Stored(3, 1011)


def test_keys_that_are_deleted_again_and_again_do_not_fill_the_store() -> None:
    store = opened()
    for time_ms in range(0, 10_000, 2):
        store.put(f"{time_ms // 20}", 1, time_ms)
        store.put(f"{time_ms // 20}", None, time_ms + 1)
        store.commit()
    assert len(dict(store.packed_entries())) <= HISTORY_MS // 20 + 2
    assert len(store._deleted) <= HISTORY_MS + 2


@pytest.mark.parametrize("limits", [LIMITS, Limits(log_bytes=1, page_bytes=1_500)], ids=["in the log", "in pages"])
def test_stored_deletions_older_than_the_history_are_dropped_when_their_page_or_the_log_is_written(
    limits: Limits,
) -> None:
    spec, variables = opened().spec, MemoryVariables()
    sizes = []
    for time_ms in range(0, 6_000, 20):
        kept = kept_rows(spec, variables, limits)
        store = store_over(spec, kept)
        assert isinstance(store, VersionedStore)
        if time_ms == 0:
            store.put("live", 7, 0)
            store.put("returned", None, 0)
        if time_ms == 5_900:
            store.put("returned", 8, time_ms)
        store.put(f"key {time_ms}", 1, time_ms)
        store.put(f"key {time_ms - 20}", None, time_ms)
        change = store.commit()
        kept.save(packed(spec, change.entries.items()), change.numbers, store.kept_from_ms)
        sizes.append(sum(map(len, [*variables.log, *variables.pages.values()])))
    assert bool(variables.pages) == (limits is not LIMITS)
    assert max(sizes) <= 2 * max(sizes[:60])
    again = store_over(spec, kept_rows(spec, variables, limits))
    assert isinstance(again, VersionedStore)
    found = dict(again.packed_entries())
    assert found["live"] == Versions([0], [7])
    assert found["returned"] == Versions([5_900], [8])
    # Deletions within the history are known.
    assert [key for key, each in found.items() if each.newest() is None] == [
        f"key {time_ms - 20}" for time_ms in range(5_880, 6_000, 20)
    ]
    assert len(found) == 9


def test_a_key_of_which_nothing_is_left_is_deleted_with_the_batch() -> None:
    store = opened()
    store.put("a", 1, 10)
    store.commit()
    store.put("a", None, 10)
    assert dict(store.packed_entries()) == {}
    assert store.commit().entries == {"a": None}
