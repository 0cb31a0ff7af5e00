"""Tests of a follower's log, which has a leader's batches unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.errors import CorruptBatchError, FencedLeaderEpochError, StorageError
from millrace.records import ControlType, EndTransactionMarker, scan_headers
from millrace_broker.log import PartitionLog, ReplicatedBatches
from millrace_broker.log.segment_appender import RELATIVE_OFFSET_MAX

from .conftest import FailingFiles

Open = Callable[..., PartitionLog]
Batch = Callable[..., bytes]
NOW_MS = 1_700_000_000_000
SMALL = {"segment.bytes": 500, "index.interval.bytes": 100}


def replicate(leader: PartitionLog, follower: PartitionLog, max_bytes: int = 2**20) -> None:
    while records := leader.read_to_end(follower.log_end_offset, max_bytes):
        follower.append_replicated(ReplicatedBatches(records))


def content(log: PartitionLog) -> bytes:
    return b"".join(segment.read(0, segment.size_bytes) for segment in log.segments)


@pytest.fixture
def leader(open_log: Open, tmp_path: Path) -> PartitionLog:
    (tmp_path / "leader").mkdir()
    return open_log(SMALL, directory=tmp_path / "leader")


@pytest.fixture
def follower(open_log: Open, tmp_path: Path) -> PartitionLog:
    (tmp_path / "follower").mkdir()
    log = open_log(SMALL, directory=tmp_path / "follower")
    log.hold_watermark(0)
    return log


def test_batches_are_appended_as_they_are(leader: PartitionLog, follower: PartitionLog, batch: Batch) -> None:
    for epoch in (0, 0, 2, 5, 5):
        leader.append(batch([NOW_MS, NOW_MS + 1]), leader_epoch=epoch)
    leader.append(batch(producer_id=7, producer_epoch=1, base_sequence=0), leader_epoch=5)
    replicate(leader, follower)
    assert content(follower) == content(leader)
    assert follower.epochs.entries == leader.epochs.entries == ((0, 0), (2, 4), (5, 6))
    assert follower.producers == leader.producers
    assert len(follower.segments) > 1
    assert follower.offset_for_time(NOW_MS + 1) == leader.offset_for_time(NOW_MS + 1)
    assert (follower.high_watermark, follower.read(0, 1000)) == (0, b"")
    follower.raise_watermark(5)
    follower.raise_watermark(3)
    assert follower.high_watermark == 5


def test_an_append_that_needs_more_than_a_write_is_known_before(open_log: Open, tmp_path: Path, batch: Batch) -> None:
    leader_directory, directory, synced = tmp_path / "leader", tmp_path / "follower", tmp_path / "synced"
    for each in (leader_directory, directory, synced):
        each.mkdir()
    leader, follower = open_log(SMALL, directory=leader_directory), open_log(SMALL, directory=directory)
    careful = open_log({"flush.before.ack": "true"}, directory=synced)
    assert follower.takes_at_once(0), "only the high watermark changes"
    assert not follower.takes_at_once(1), "the file of the segment is not open"
    leader.append(batch())
    for log in (follower, careful):
        replicate(leader, log)
    assert follower.takes_at_once(500 - follower.size_bytes)
    assert not follower.takes_at_once(501 - follower.size_bytes), "a new segment is needed"
    assert not careful.takes_at_once(1), "the segment must be synced"


def test_transactions_are_known_to_followers(leader: PartitionLog, follower: PartitionLog, batch: Batch) -> None:
    for sequence, type_ in ((0, ControlType.ABORT), (1, ControlType.COMMIT)):
        records = batch(producer_id=1, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        leader.append(records, in_transaction=True)
        leader.append_end_marker_unsynced(1, 0, EndTransactionMarker(type=type_, coordinator_epoch=3))
    leader.append(batch(producer_id=1, producer_epoch=0, base_sequence=2, is_transactional=True), in_transaction=True)
    replicate(leader, follower)
    follower.raise_watermark(follower.log_end_offset)
    assert follower.last_stable_offset == leader.last_stable_offset == 4
    assert follower.aborted_transactions(0, 5) == leader.aborted_transactions(0, 5) != []
    assert follower.producers == leader.producers


@pytest.mark.parametrize("position", [0, 30, 80])
def test_damaged_batches_are_refused(leader: PartitionLog, batch: Batch, position: int) -> None:
    leader.append(batch())
    records = bytearray(leader.read_to_end(0, 1000))
    records[position] ^= 0x80
    with pytest.raises(CorruptBatchError):
        ReplicatedBatches(bytes(records))
    with pytest.raises(CorruptBatchError):
        ReplicatedBatches(leader.read_to_end(0, 1000)[:-1])


def test_each_replicated_batch_is_verified_once(
    leader: PartitionLog, follower: PartitionLog, batch: Batch, verified: list[int]
) -> None:
    for _ in range(3):
        leader.append(batch())
    records = leader.read_to_end(0, 1000)
    verified.clear()  # reads verify what they find on the disk
    follower.append_replicated(ReplicatedBatches(records))
    assert verified == [position for position, _ in scan_headers(records)]


def test_records_that_the_log_already_has_are_refused(
    leader: PartitionLog, follower: PartitionLog, batch: Batch
) -> None:
    leader.append(batch())
    replicate(leader, follower)
    records = leader.read_to_end(0, 1000)
    with pytest.raises(CorruptBatchError):
        follower.append_replicated(ReplicatedBatches(records))


@pytest.mark.parametrize(("gap", "segments"), [(0, 1), (RELATIVE_OFFSET_MAX - 1, 1), (RELATIVE_OFFSET_MAX, 2)])
def test_offsets_too_far_from_the_first_of_a_segment_begin_another(
    follower: PartitionLog, batch: Batch, gap: int, segments: int
) -> None:
    # Compaction leaves such gaps, also between the batches of one fetch.
    records = batch() + batch(base_offset=1 + gap)
    assert follower.append_replicated(ReplicatedBatches(records)) == 2 + gap
    assert len(follower.segments) == segments
    assert content(follower) == records


def test_the_last_batch_of_a_fetch_may_be_the_one_that_is_too_far(follower: PartitionLog, batch: Batch) -> None:
    first, fetched = batch(), batch(base_offset=RELATIVE_OFFSET_MAX) + batch(base_offset=RELATIVE_OFFSET_MAX + 1)
    follower.append_replicated(ReplicatedBatches(first))
    follower.append_replicated(ReplicatedBatches(fetched))
    assert [segment.base_offset for segment in follower.segments] == [0, 1]
    assert content(follower) == first + fetched


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("stop", ["close", "release"])
def test_a_gap_larger_than_a_segment_begins_another_after_it(
    open_log: Open, tmp_path: Path, batch: Batch, is_empty: bool, stop: str
) -> None:
    options, far = {"cleanup.policy": "compact"}, 2**31 + 1000
    first = b"" if is_empty else batch()
    follower = open_log(options, directory=tmp_path)
    records = [batch(base_offset=far + number) for number in range(3)]
    for each in [first, *records]:
        follower.append_replicated(ReplicatedBatches(each))
    for _ in range(2):
        assert [segment.base_offset for segment in follower.segments] == [0, far]
        assert (follower.log_start_offset, follower.log_end_offset) == (0, far + 3)
        assert content(follower) == first + b"".join(records)
        assert follower.read(1, 1000) == b"".join(records)
        getattr(follower, stop)()
        follower = open_log(
            options,
            directory=tmp_path,
            recovery_point=far + 3 if stop == "close" else None,
            was_clean=stop == "close",
        )
    follower.truncate_to(1000)
    assert follower.log_end_offset == (0 if is_empty else 1)
    follower.append_replicated(ReplicatedBatches(records[0]))
    assert follower.read(1, 1000) == records[0]


def test_a_log_continues_after_a_gap_whose_batches_could_not_be_written(
    open_log: Open, batch: Batch, disk: FailingFiles
) -> None:
    far = 2**31 + 1000
    log = open_log({"cleanup.policy": "compact"}, files=disk)
    log.append_replicated(ReplicatedBatches(batch()))
    disk.bytes_left = 60  # for the snapshot, but not for the batch
    with pytest.raises(StorageError):
        log.append_replicated(ReplicatedBatches(batch(base_offset=far)))
    disk.bytes_left = 2**40
    assert log.log_end_offset == log.segments[-1].base_offset == far
    log.append(batch())
    assert [header.base_offset for _, header in scan_headers(log.read(1, 1000))] == [far]


def test_a_fetch_larger_than_a_segment_is_spread_over_several(follower: PartitionLog, batch: Batch) -> None:
    size = len(batch())
    records = b"".join(batch(base_offset=offset) for offset in range(12))
    follower.append_replicated(ReplicatedBatches(records))
    per_segment = 500 // size
    assert [segment.size_bytes for segment in follower.segments[:-1]] == [per_segment * size] * (
        len(follower.segments) - 1
    )
    assert content(follower) == records


@pytest.mark.parametrize(("base_offset", "is_refused"), [(1, True), (2, False), (3, False)])
def test_offsets_of_a_fetch_ascend(batch: Batch, base_offset: int, is_refused: bool) -> None:
    records = batch([NOW_MS] * 2) + batch(base_offset=base_offset)
    if is_refused:
        with pytest.raises(CorruptBatchError, match="at offset 1 does not follow offset 1"):
            ReplicatedBatches(records)
    else:
        assert [header.base_offset for _, header in ReplicatedBatches(records).headers] == [0, base_offset]


def test_an_empty_fetch_changes_nothing(follower: PartitionLog) -> None:
    assert follower.append_replicated(ReplicatedBatches(b"")) == 0


def test_an_epoch_begins_where_the_log_ends(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch(), leader_epoch=1)
    log.begin_epoch(4)
    assert log.epochs.entries == ((1, 0), (4, 1))
    with pytest.raises(FencedLeaderEpochError):
        log.append(batch(), leader_epoch=1)
    assert open_log().epochs.entries == ((1, 0),)  # no record was appended in this epoch
    log.append(batch(), leader_epoch=4)
    assert open_log().epochs.entries == ((1, 0), (4, 1))
