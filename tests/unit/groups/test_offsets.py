"""Tests of committed offsets.

The offsets in memory equal those that are loaded from the log.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.coordinator_records import OffsetCommitKey, OffsetCommitValue, write_key, write_versioned
from millrace.records import BatchHeader, EndTransactionMarker, Record, build_rows_batch, scan_headers
from millrace.records.control import ControlType
from millrace_broker.coordinators import LoadedBatch, StateRecord
from millrace_broker.groups.effects import StoredGroup, StoredMember
from millrace_broker.groups.loading import GroupLoader
from millrace_broker.groups.offsets import CommittedOffset, GroupOffsets
from millrace_broker.groups.records import (
    group_record,
    group_tombstone,
    offset_key,
    offset_record,
    offset_tombstone,
    read_group,
    read_offset,
)
from millrace_broker.groups.states import GroupState

T0, T1 = ("t", 0), ("t", 1)


def commit(offset: int, position: int = -1, time_ms: int = 1000, expire_ms: int = -1) -> CommittedOffset:
    return CommittedOffset(offset, 3, "m", time_ms, position, expire_ms)


def header(base_offset: int, count: int, producer_id: int = -1) -> BatchHeader:
    is_transactional = producer_id >= 0
    data = build_rows_batch(
        [Record(value=b"")] * count,
        producer_id=producer_id,
        producer_epoch=0 if is_transactional else -1,
        base_sequence=0 if is_transactional else -1,
        is_transactional=is_transactional,
    )
    return next(scan_headers(data))[1]._replace(base_offset=base_offset)


def test_the_later_record_wins_whichever_is_heard_of_later() -> None:
    offsets = GroupOffsets()
    offsets.apply(T0, commit(7, position=5))
    offsets.apply(T0, commit(6, position=4))
    assert offsets.get(T0) == commit(7, position=5)


def test_offsets_are_unstable_while_they_are_written() -> None:
    offsets = GroupOffsets()
    offsets.begin([T0, T1])
    assert offsets.is_unstable(T0)
    offsets.finish({T0: commit(1), T1: commit(2)}, 10)
    assert not offsets.is_unstable(T0)
    assert offsets.get(T1) == commit(2, position=11)


def test_an_append_that_failed_changes_nothing() -> None:
    offsets = GroupOffsets()
    offsets.begin([T0])
    offsets.finish({T0: commit(1)}, None)
    assert offsets.is_empty
    offsets.begin([T0], producer_id=9)
    assert not offsets.is_empty
    offsets.finish({T0: commit(1)}, None, producer_id=9)
    assert offsets.is_empty


def test_a_tombstone_deletes_the_offsets_before_it_pending_ones_too() -> None:
    offsets = GroupOffsets()
    offsets.apply(T0, commit(1, position=5))
    offsets.add_pending(9, T0, commit(2, position=6))
    offsets.add_pending(9, T1, commit(3, position=7))
    offsets.delete([T0], 4)
    assert (offsets.get(T0), offsets.is_unstable(T0)) == (commit(1, position=5), True)
    offsets.delete([T0], 5)
    assert (offsets.get(T0), offsets.is_unstable(T0)) == (None, True)
    offsets.delete([T0, T1], 6)
    assert (offsets.is_unstable(T0), offsets.is_unstable(T1), offsets.open_producers) == (False, True, {9})
    offsets.delete([T0, T1], 7)
    assert offsets.open_producers == frozenset()
    assert offsets.is_empty


def test_partitions_with_an_offset_of_any_kind_can_be_deleted() -> None:
    offsets = GroupOffsets()
    u, v = ("u", 0), ("v", 0)
    offsets.apply(T0, commit(1, position=5))
    offsets.add_pending(9, T1, commit(2, position=6))
    offsets.begin([u])
    assert offsets.partitions() == [T0, T1, u]
    assert offsets.of_topics(frozenset("t")) == [T0, T1]
    assert offsets.deletable([u, T1, v, T0]) == [u, T1, T0]


@pytest.mark.parametrize("is_committed", [True, False])
def test_offsets_of_a_transaction_wait_for_its_end(is_committed: bool) -> None:
    offsets = GroupOffsets()
    offsets.begin([T0], producer_id=9)
    assert offsets.open_producers == {9}
    offsets.finish({T0: commit(1)}, 10, producer_id=9)
    assert offsets.is_unstable(T0)
    assert offsets.get(T0) is None
    offsets.complete(9, is_committed=is_committed, end_offset=12)
    assert offsets.get(T0) == (commit(1, position=10) if is_committed else None)
    assert not offsets.is_unstable(T0)


def test_a_transaction_commits_before_what_was_committed_after_it() -> None:
    offsets = GroupOffsets()
    offsets.begin([T0], producer_id=9)
    offsets.finish({T0: commit(1)}, 10, producer_id=9)
    offsets.apply(T0, commit(2, position=11))
    offsets.complete(9, is_committed=True, end_offset=13)
    assert offsets.get(T0) == commit(2, position=11)


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_end_of_a_transaction_may_be_heard_of_before_its_append(is_committed: bool) -> None:
    offsets = GroupOffsets()
    offsets.begin([T0], producer_id=9)
    offsets.complete(9, is_committed=is_committed, end_offset=12)
    offsets.finish({T0: commit(1)}, 10, producer_id=9)
    assert offsets.get(T0) == (commit(1, position=10) if is_committed else None)
    assert not offsets.open_producers


def test_an_append_after_a_marker_belongs_to_the_next_transaction() -> None:
    offsets = GroupOffsets()
    offsets.begin([T0], producer_id=9)
    offsets.complete(9, is_committed=True, end_offset=12)
    offsets.finish({T0: commit(1)}, 12, producer_id=9)
    assert offsets.get(T0) is None
    assert offsets.open_producers == {9}


def expired(offsets: GroupOffsets, now_ms: int, **fields: Any) -> list[tuple[str, int]]:
    group: dict[str, Any] = {
        "state": GroupState.EMPTY,
        "protocol_type": "consumer",
        "state_since_ms": 5000,
        "subscribed_topics": None,
        **fields,
    }
    return offsets.expired(now_ms, 100, **group)


def test_offsets_expire_after_the_group_became_empty() -> None:
    offsets = GroupOffsets()
    offsets.apply(T0, commit(1, position=1, time_ms=1000))
    assert expired(offsets, 5099) == []
    assert expired(offsets, 5100) == [T0]
    assert expired(offsets, 1100, state_since_ms=-1) == [T0]
    assert expired(offsets, 99, state_since_ms=0) == []
    assert expired(offsets, 100, state_since_ms=0) == [T0]


def test_offsets_of_a_group_without_members_expire_after_the_commit() -> None:
    offsets = GroupOffsets()
    offsets.apply(T0, commit(1, position=1, time_ms=1000))
    assert expired(offsets, 1099, protocol_type="") == []
    assert expired(offsets, 1100, protocol_type="") == [T0]


def test_of_a_stable_group_only_what_it_does_not_read_any_more_expires() -> None:
    offsets = GroupOffsets()
    offsets.apply(T0, commit(1, position=1))
    offsets.apply(("u", 0), commit(1, position=2))
    stable = {"state": GroupState.STABLE, "subscribed_topics": frozenset("t")}
    assert expired(offsets, 1099, **stable) == []
    assert expired(offsets, 1100, **stable) == [("u", 0)]
    assert expired(offsets, 10_000, **stable) == [("u", 0)]
    assert expired(offsets, 10_000, **{**stable, "state": GroupState.PREPARING_REBALANCE}) == []
    assert expired(offsets, 10_000, **{**stable, "subscribed_topics": None}) == []
    assert expired(offsets, 10_000, **{**stable, "protocol_type": "connect"}) == []


def test_old_records_expire_when_they_say_so() -> None:
    offsets = GroupOffsets()
    offsets.apply(T0, commit(1, position=1, expire_ms=7000))
    assert expired(offsets, 6999) == []
    assert expired(offsets, 7000) == [T0]


def test_pending_offsets_do_not_expire() -> None:
    offsets = GroupOffsets()
    offsets.apply(T0, commit(1, position=1))
    offsets.begin([T0])
    assert expired(offsets, 10_000) == []


# --- records ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**62), st.text(max_size=20), st.integers(-1, 2**31 - 1))
def test_an_offset_is_written_as_kafka_does(offset: int, metadata: str, epoch: int) -> None:
    record = offset_record("g", T0, CommittedOffset(offset, epoch, metadata, 123))
    value = OffsetCommitValue(offset=offset, leader_epoch=epoch, metadata=metadata, commit_timestamp=123)
    assert record.value == write_versioned(value, 3)
    assert record.key == write_key(OffsetCommitKey(group="g", topic="t", partition=0))
    assert read_offset(record.value or b"", 4) == CommittedOffset(offset, epoch, metadata, 123, 4)


def test_offsets_of_old_versions_are_read() -> None:
    value = OffsetCommitValue(offset=5, metadata="", commit_timestamp=10, expire_timestamp=20)
    assert read_offset(write_versioned(value, 1), 0).expire_timestamp_ms == 20
    assert read_offset(write_versioned(value, 0), 0) == CommittedOffset(5, -1, "", 10, 0)


def test_a_group_is_read_as_it_was_written() -> None:
    member = StoredMember(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="/h",
        session_timeout_ms=1,
        rebalance_timeout_ms=2,
        subscription=b"s",
        assignment=b"a",
    )
    group = StoredGroup(protocol_type="consumer", generation_id=4, protocol_name="range", leader="m", members=(member,))
    record = group_record("g", group, 99)
    assert read_group(record.value or b"") == (group, 99)


# --- the log and the memory ------------------------------------------------------------------------------------------


def load(batches: list[LoadedBatch]) -> dict[str, Any]:
    loading = GroupLoader("__consumer_offsets-0")
    for batch in batches:
        loading.replay(batch)
    return loading.groups()


def test_a_group_that_was_forgotten_is_not_there() -> None:
    group = StoredGroup(protocol_type="consumer", generation_id=1)
    records = [group_record("g", group, 1), offset_record("g", T0, commit(1)), group_record("h", group, 1)]
    tombstones = [group_tombstone("g"), offset_tombstone("g", T0)]
    loaded = load([LoadedBatch(header(0, 3), records), LoadedBatch(header(3, 2), tombstones)])
    assert list(loaded) == ["h"]


def test_keys_of_both_versions_are_the_same_offset_and_unknown_ones_are_passed_over() -> None:
    old = StateRecord(b"\0\0" + offset_key("g", T0)[2:], offset_record("g", T0, commit(1)).value)
    records = [old, offset_record("g", T0, commit(2)), StateRecord(b"\0\7newer", b"x"), StateRecord(b"", b"x")]
    loaded = load([LoadedBatch(header(0, 4), records)])
    assert loaded["g"].offsets.committed == {T0: commit(2, position=1)}
    assert loaded["g"].read() == (None, -1), "a group without a record, whose last change is unknown"


PRODUCERS = st.sampled_from([None, 1, 2])
EVENT = st.one_of(
    st.tuples(st.just("commit"), PRODUCERS, st.lists(st.sampled_from([T0, T1]), min_size=1, unique=True)),
    st.tuples(st.just("end"), st.sampled_from([1, 2]), st.booleans()),
    st.tuples(st.just("delete"), st.none(), st.sampled_from([T0, T1])),
    st.tuples(st.just("finish"), st.none(), st.none()),
)


@given(st.lists(EVENT, max_size=30))
def test_reading_the_log_gives_what_was_in_memory(events: list[tuple[str, Any, Any]]) -> None:
    offsets, log, end = GroupOffsets(), [], 0
    in_flight: list[tuple[dict[Any, CommittedOffset], int, int | None]] = []

    def finish() -> None:
        if in_flight:
            offsets.finish(*in_flight.pop(0))

    for number, (kind, producer_id, what) in enumerate(events):
        if kind == "commit":
            commits = {partition: commit(number) for partition in what}
            records = [offset_record("g", partition, each) for partition, each in commits.items()]
            log.append(LoadedBatch(header(end, len(what), -1 if producer_id is None else producer_id), records))
            offsets.begin(commits, producer_id)
            in_flight.append((commits, end, producer_id))
            end += len(what)
        elif kind == "end":
            marker = EndTransactionMarker(type=ControlType.COMMIT if what else ControlType.ABORT, coordinator_epoch=0)
            log.append(LoadedBatch(header(end, 1, producer_id), (), marker))
            end += 1
            offsets.complete(producer_id, is_committed=what, end_offset=end)
        elif kind == "delete":
            while in_flight:
                finish()  # calls of one log return in order
            log.append(LoadedBatch(header(end, 1), [offset_tombstone("g", what)]))
            offsets.delete([what], end)
            end += 1
        else:
            finish()
    while in_flight:
        finish()
    loaded = load(log).get("g")
    assert (loaded.offsets.committed if loaded else {}) == offsets.committed
    assert (loaded.offsets.open_producers if loaded else set()) == offsets.open_producers
    for partition in (T0, T1):
        assert (loaded is not None and loaded.offsets.is_unstable(partition)) == offsets.is_unstable(partition)
