"""Tests of truncated logs.

The tests cover the state that a truncation drops, and batches that a leader sends again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.errors import OffsetOutOfRangeError, StorageError
from millrace.records import scan_headers
from millrace_broker.log import PartitionLog, ReplicatedBatches

Open = Callable[..., PartitionLog]
Batch = Callable[..., bytes]
NOW_MS = 1_700_000_000_000
SMALL = {"segment.bytes": 500, "index.interval.bytes": 100}


def replicate(leader: PartitionLog, follower: PartitionLog, max_bytes: int = 2**20) -> None:
    while records := leader.read_to_end(follower.log_end_offset, max_bytes):
        follower.append_replicated(ReplicatedBatches(records))


def content(log: PartitionLog) -> bytes:
    return b"".join(segment.read(0, segment.size_bytes) for segment in log.segments)


def test_truncation_forgets_what_it_cuts_off(open_log: Open, batch: Batch) -> None:
    log = open_log(SMALL)
    log.hold_watermark(0)
    for number in range(12):
        log.append(
            batch([NOW_MS + number], producer_id=3, producer_epoch=0, base_sequence=number), leader_epoch=number // 4
        )
    before, segments = content(log), len(log.segments)
    assert segments > 2
    log.lower_recovery_point(5)
    log.truncate_to(5)
    assert log.log_end_offset == 5
    assert before.startswith(content(log))
    assert log.epochs.entries == ((0, 0), (1, 4))
    assert [entry.last_sequence for entry in log.producers] == [4]
    assert log.offset_for_time(NOW_MS + 4) == (4, NOW_MS + 4)
    assert log.offset_for_time(NOW_MS + 5) is None
    with pytest.raises(OffsetOutOfRangeError):
        log.read_to_end(6, 100)
    again = batch([NOW_MS], producer_id=3, producer_epoch=0, base_sequence=5)
    assert log.append(again, leader_epoch=7).base_offset == 5
    reopened = open_log(SMALL)
    assert (reopened.log_end_offset, reopened.epochs.entries) == (6, ((0, 0), (1, 4), (7, 5)))
    assert content(reopened) == content(log)


def test_epochs_that_begin_at_the_end_are_forgotten_too(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch(), leader_epoch=1)
    log.begin_epoch(2)
    log.truncate_to(1)
    assert (log.log_end_offset, log.epochs.entries) == (1, ((1, 0),))


def test_a_log_is_closed_cleanly_after_a_truncation(open_log: Open, batch: Batch) -> None:
    log = open_log()
    for number in range(5):
        log.append(batch([NOW_MS + number]))
    log.truncate_to(2)
    log.close()
    again = open_log(was_clean=True, recovery_point=2)
    assert again.log_end_offset == 2
    assert again.max_timestamp_offset() == (1, NOW_MS + 1)


def test_the_largest_timestamp_after_a_truncation_may_be_newer_than_the_last_index_entry(
    open_log: Open, batch: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log({"index.interval.bytes": 300})
    for number in range(12):
        log.append(batch([NOW_MS + number]))
    for end in (10, 9, 8, 7):
        log.truncate_to(end)
        assert log.max_timestamp_offset() == (end - 1, NOW_MS + end - 1)
    assert "rebuilt the indexes" not in caplog.text


def test_a_truncation_keeps_the_index_entries_of_the_remaining_records(
    open_log: Open, batch: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log({"index.interval.bytes": 100})
    for number in range(12):
        log.append(batch([NOW_MS + number]))
    before = list(log.segments[0].indexes()[0])
    log.truncate_to(3)
    kept = list(log.segments[0].indexes()[0])
    assert kept == [entry for entry in before if entry.offset < 3]
    assert len(before) > 2 * len(kept) > 0
    assert "rebuilt the indexes" not in caplog.text


def test_a_log_starts_again(open_log: Open, batch: Batch) -> None:
    log = open_log(SMALL)
    for number in range(12):
        log.append(batch(producer_id=3, producer_epoch=0, base_sequence=number))
    log.begin_at(100)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (100, 100, 100)
    assert (log.epochs.entries, log.producers, len(log.segments)) == ((), (), 1)
    assert log.append(batch(), leader_epoch=3).base_offset == 100
    reopened = open_log(SMALL)
    assert (reopened.log_start_offset, reopened.log_end_offset, reopened.epochs.entries) == (100, 101, ((3, 100),))


def test_truncation_before_the_first_record_empties_the_log(open_log: Open, batch: Batch) -> None:
    log = open_log(SMALL)
    log.begin_at(100)
    for number in range(12):
        log.append(batch([NOW_MS + number]), leader_epoch=1)
    log.truncate_to(100)
    assert (log.log_start_offset, log.log_end_offset, log.first_base_offset) == (100, 100, 100)
    log.append(batch(), leader_epoch=1)
    log.truncate_to(99)
    assert (log.log_start_offset, log.log_end_offset, log.first_base_offset) == (99, 99, 99)
    assert (log.epochs.entries, len(log.segments)) == ((), 1)
    assert log.append(batch(), leader_epoch=2).base_offset == 99


def test_a_failed_new_start_takes_the_partition_offline(open_log: Open, batch: Batch, disk: Any) -> None:
    log = open_log(files=disk)
    log.append(batch())
    disk.refuses_open = True
    with pytest.raises(StorageError, match="input/output error"):
        log.begin_at(100)
    disk.refuses_open = False
    with pytest.raises(StorageError, match="accepts no appends because its disk failed"):
        log.append(batch())


@pytest.mark.parametrize(("offset", "must_write", "recovery_point"), [(3, True, 3), (4, False, 4), (5, False, 4)])
def test_the_recovery_point_is_lowered_to_what_truncation_leaves(
    open_log: Open, batch: Batch, offset: int, must_write: bool, recovery_point: int
) -> None:
    log = open_log()
    for _ in range(4):
        log.append(batch())
    log.flush()
    log.append(batch())
    assert log.lower_recovery_point(offset) is must_write
    assert log.recovery_point == recovery_point


def test_the_recovery_point_is_not_inside_a_batch_that_truncation_removes(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch([NOW_MS] * 3))
    log.append(batch([NOW_MS] * 3))
    log.flush()
    assert log.lower_recovery_point(5)
    assert log.recovery_point == 3


def test_a_failed_truncation_takes_the_partition_offline(open_log: Open, batch: Batch, disk) -> None:  # type: ignore[no-untyped-def]
    log = open_log(files=disk)
    log.append(batch())
    log.append(batch())
    disk.refuses_truncate = True
    with pytest.raises(StorageError):
        log.truncate_to(1)
    disk.refuses_truncate = False
    with pytest.raises(StorageError):
        log.append(batch())
    assert open_log(files=disk).log_end_offset in (1, 2)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=25),
    cut=st.integers(0, 60),
    reads=st.integers(1, 700),
    held=st.booleans(),
)
def test_a_follower_that_went_back_gets_the_same_again(
    open_log: Open,
    batch: Batch,
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    cut: int,
    reads: int,
    held: bool,
) -> None:
    first, second = tmp_path_factory.mktemp("leader"), tmp_path_factory.mktemp("follower")
    leader, follower = open_log(SMALL, directory=first), open_log(SMALL, directory=second)
    for number, size in enumerate(sizes):
        leader.append(batch([NOW_MS + number] * size), leader_epoch=number // 3)
    replicate(leader, follower, reads)
    ends = {header.next_offset for _, header in scan_headers(content(leader))} | {0}
    if held:
        follower.hold_watermark(min(cut, follower.log_end_offset))
    follower.lower_recovery_point(cut)
    follower.truncate_to(cut)
    assert follower.log_end_offset == max(end for end in ends if end <= cut)
    assert content(leader).startswith(content(follower))
    replicate(leader, follower, reads)
    assert content(follower) == content(leader)
    assert follower.epochs.entries == leader.epochs.entries
    reopened = open_log(SMALL, directory=second)
    assert content(reopened) == content(leader)
    assert reopened.epochs.entries == leader.epochs.entries
