"""Tests of appends from the event loop.

An append has the usual result, or does nothing if it would have to wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from millrace.errors import (
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    RecordListTooLargeError,
    StorageError,
)
from millrace.records import ControlType, EndTransactionMarker
from millrace_broker.log import AppendResult, PartitionLog, ProducedBatches

from ...integration.waiting import STALL_S

Open = Callable[..., PartitionLog]
Batch = Callable[..., bytes]
START = 1_700_000_000_000
COMMIT = EndTransactionMarker(type=ControlType.COMMIT, coordinator_epoch=0)
ABORT = EndTransactionMarker(type=ControlType.ABORT, coordinator_epoch=0)


def at_once(log: PartitionLog, data: bytes, leader_epoch: int = 0) -> AppendResult | None:
    return log.append_unsynced(ProducedBatches(data, log.config), leader_epoch=leader_epoch, may_wait=False)


def test_the_event_loop_appends_when_the_files_are_open(open_log: Open, batch: Batch) -> None:
    log = open_log()
    assert at_once(log, batch([START])) is None  # the segment has not been opened for appending
    log.append(batch([START]))
    result = at_once(log, batch([START] * 2))
    assert result is not None
    assert (result.base_offset, result.last_offset) == (1, 2)
    assert log.log_end_offset == log.high_watermark == 3
    assert log.read(1, 10_000)
    assert log.is_recent(1)


def test_a_new_epoch_is_left_to_a_thread(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch([START]), leader_epoch=1)
    assert at_once(log, batch([START]), leader_epoch=2) is None
    assert log.epochs.entries == ((1, 0),)
    with pytest.raises(FencedLeaderEpochError):
        at_once(log, batch([START]), leader_epoch=0)


def test_a_roll_is_left_to_a_thread(open_log: Open, batch: Batch) -> None:
    sent = batch([START])
    log = open_log({"segment.bytes": str(len(sent) * 2)})
    log.append(sent)
    assert at_once(log, sent) is not None
    assert at_once(log, sent) is None
    assert (len(log.segments), log.log_end_offset) == (1, 2)
    log.append(sent)
    assert len(log.segments) == 2
    assert at_once(log, sent) is not None


def test_the_event_loop_does_not_wait_for_the_lock_of_the_log(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch([START]))
    is_held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with log._local.lock:
            is_held.set()
            release.wait(STALL_S)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert is_held.wait(STALL_S)
        assert at_once(log, batch([START])) is None
    finally:
        release.set()
        holder.join()
    assert at_once(log, batch([START])) is not None


def test_errors_are_those_of_any_append(open_log: Open, batch: Batch, disk: Any) -> None:
    log = open_log(files=disk)
    log.append(batch([START]))
    disk.bytes_left = 10
    with pytest.raises(StorageError):
        at_once(log, batch([START]))
    disk.bytes_left = 2**40
    assert log.log_end_offset == 1
    result = at_once(log, batch([START]))
    assert result is not None
    assert result.base_offset == 1


def test_unsynced_records_are_not_readable_with_flush_before_ack(open_log: Open, batch: Batch) -> None:
    log = open_log({"flush.before.ack": "true"})
    log.append(batch([START]))
    result = at_once(log, batch([START]))
    assert result is not None
    assert log.must_sync(result)
    assert log.high_watermark == 1


def test_the_end_of_a_transaction_is_left_to_a_thread_where_it_needs_another_file(open_log: Open, batch: Batch) -> None:
    log = open_log()
    assert log.append_end_marker_unsynced(1, 0, COMMIT, may_wait=False) is None  # no segment is open for appends
    for epoch, marker in enumerate([COMMIT, ABORT]):
        producer = {"producer_id": 1, "producer_epoch": epoch, "base_sequence": 0, "is_transactional": True}
        log.append(batch([START], **producer), in_transaction=True)
        end_offset = log.log_end_offset
        result = log.append_end_marker_unsynced(1, epoch, marker, may_wait=False)
        if marker is COMMIT:
            assert result is not None
            assert result.base_offset == end_offset == log.last_stable_offset - 1
    assert result is None  # the index of aborted transactions
    assert (log.log_end_offset, log.last_stable_offset) == (end_offset, end_offset - 1)
    log.append_end_marker_unsynced(1, 1, ABORT)
    assert log.last_stable_offset == log.log_end_offset
    assert log.append_end_marker_unsynced(1, 1, COMMIT, leader_epoch=1, may_wait=False) is None


@pytest.mark.parametrize("room_bytes", [-1, 0, 1])
def test_batches_larger_than_a_segment_are_refused(open_log: Open, batch: Batch, room_bytes: int) -> None:
    sent = batch([START]) * 2
    log = open_log({"segment.bytes": len(sent) + room_bytes})
    if room_bytes < 0:
        with pytest.raises(RecordListTooLargeError, match=r"segment\.bytes"):
            log.append(sent)
    else:
        assert log.append(sent).last_offset == 1
    assert log.log_end_offset == (0 if room_bytes < 0 else 2)


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_duplicate_has_the_times_and_offsets_of_its_first_copy(
    open_log: Open, batch: Batch, clock: Any, timestamp_type: str
) -> None:
    log = open_log({"message.timestamp.type": timestamp_type})
    sent = batch([START] * 2, producer_id=9, producer_epoch=0, base_sequence=0)
    log.append(batch([START]))
    first = log.append(sent)
    log.delete_records(1)
    clock.advance_ms(1000)
    again = log.append(sent)
    assert (again.base_offset, again.last_offset, again.log_start_offset) == (1, 2, 1)
    assert again.is_duplicate
    assert again.log_append_time_ms == first.log_append_time_ms
    assert (first.log_append_time_ms >= 0) is (timestamp_type == "LogAppendTime")


@pytest.mark.parametrize(
    ("lowest", "base_sequence", "is_accepted"), [(None, 3, True), (3, 3, True), (0, 0, True), (0, 3, False)]
)
def test_the_first_batch_of_an_unknown_producer_is_the_lowest_one_that_waits(
    open_log: Open, batch: Batch, lowest: int | None, base_sequence: int, is_accepted: bool
) -> None:
    # The state of a producer may be lost by retention. Without earlier batches any sequence number follows.
    log = open_log()
    if lowest is not None:
        log.expect(9, 0, lowest)
    sent = batch(producer_id=9, producer_epoch=0, base_sequence=base_sequence, is_transactional=True)
    if is_accepted:
        log.append(sent, in_transaction=True)
        following = batch(producer_id=9, producer_epoch=0, base_sequence=base_sequence + 1, is_transactional=True)
        assert log.append(following, in_transaction=True).base_offset == 1
    else:
        with pytest.raises(OutOfOrderSequenceError):
            log.append(sent, in_transaction=True)


@pytest.mark.parametrize(
    ("is_epoch_raised", "epoch", "is_late"), [(True, 1, True), (True, 2, False), (False, 1, False)]
)
def test_a_marker_that_comes_after_the_next_transaction_began_is_late(
    open_log: Open, batch: Batch, is_epoch_raised: bool, epoch: int, is_late: bool
) -> None:
    log = open_log()
    sent = batch(producer_id=9, producer_epoch=1, base_sequence=0, is_transactional=True)
    log.append(sent, in_transaction=True)
    if is_late:
        with pytest.raises(InvalidProducerEpochError, match="comes late to orders-3"):
            log.append_end_marker_unsynced(9, epoch, COMMIT, is_epoch_raised=is_epoch_raised)
        assert log.last_stable_offset == 0
    else:
        log.append_end_marker_unsynced(9, epoch, COMMIT, is_epoch_raised=is_epoch_raised)
        assert log.last_stable_offset == 2


def test_an_end_marker_reports_its_place(open_log: Open, batch: Batch) -> None:
    log = open_log({"message.timestamp.type": "LogAppendTime"})
    for _ in range(2):
        log.append(batch([START]))
    log.delete_records(1)
    result = log.append_end_marker_unsynced(9, 0, COMMIT)
    assert result is not None
    assert (result.base_offset, result.last_offset, result.log_start_offset) == (2, 2, 1)
    assert (result.log_append_time_ms, result.is_duplicate) == (-1, False)
