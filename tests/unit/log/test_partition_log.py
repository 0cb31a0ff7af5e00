from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.errors import (
    CorruptBatchError,
    FencedLeaderEpochError,
    InvalidRequestError,
    MillraceError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    StorageError,
)
from millrace.records import TimestampType, build_columnar_batch, read_header, read_rows, scan_headers
from millrace_broker.log import PartitionLog

Open = Callable[..., PartitionLog]
Batch = Callable[..., bytes]
START = 1_700_000_000_000


def offsets(batches: bytes) -> list[tuple[int, int]]:
    return [(header.base_offset, header.last_offset) for _, header in scan_headers(batches)]


def names(directory: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.endswith(suffix))


# --- appending ------------------------------------------------------------------------------------------------


def test_append_assigns_offsets_and_leader_epoch(open_log: Open, batch: Batch) -> None:
    log = open_log()
    first = log.append(batch([START] * 3), leader_epoch=4)
    second = log.append(batch([START] * 2) + batch([START]), leader_epoch=4)
    assert (first.base_offset, first.last_offset, first.log_append_time_ms) == (0, 2, -1)
    assert (second.base_offset, second.last_offset) == (3, 5)
    assert log.log_end_offset == log.high_watermark == log.last_stable_offset == 6
    read = log.read(0, 10_000)
    assert offsets(read) == [(0, 2), (3, 4), (5, 5)]
    assert {header.partition_leader_epoch for _, header in scan_headers(read)} == {4}
    assert log.epochs.entries == ((4, 0),)


def test_stored_bytes_are_the_producers_but_for_place(open_log: Open, batch: Batch) -> None:
    log, sent = open_log(), batch([START])
    log.append(batch([START]))
    log.append(sent, leader_epoch=7)
    stored = log.read(1, 10_000)
    assert stored[8:12] == sent[8:12]
    assert stored[16:] == sent[16:]


def test_many_batches_are_appended_at_once(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(b"".join(batch([START]) for _ in range(1500)))
    assert log.log_end_offset == 1500
    assert offsets(log.read(1400, 100_000)) == [(n, n) for n in range(1400, 1500)]


def test_append_time_replaces_timestamps(open_log: Open, batch: Batch, clock: Any) -> None:
    log = open_log({"message.timestamp.type": "LogAppendTime"})
    result = log.append(batch([5, 6]))
    assert result.log_append_time_ms == clock.now_ms()
    stored = log.read(0, 1000)
    header = read_header(stored)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == clock.now_ms()
    assert [record.timestamp_ms for record in read_rows(stored, 0, header)] == [clock.now_ms()] * 2
    assert log.offset_for_time(clock.now_ms()) == (0, clock.now_ms())


def test_older_leader_epoch_is_fenced(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch(), leader_epoch=5)
    with pytest.raises(FencedLeaderEpochError, match="epoch 5"):
        log.append(batch(), leader_epoch=4)
    log.append(batch(), leader_epoch=6)
    assert log.epochs.entries == ((5, 0), (6, 1))


def test_negative_leader_epoch_is_refused(open_log: Open, batch: Batch) -> None:
    log = open_log()
    with pytest.raises(InvalidRequestError, match="leader epoch -1 of orders-3 is negative"):
        log.append(batch(), leader_epoch=-1)
    assert log.append(batch(), leader_epoch=0).base_offset == 0


def test_offsets_have_the_epoch_of_their_append_and_epochs_their_ends(open_log: Open, batch: Batch) -> None:
    log = open_log()
    assert log.epoch_of(0) == -1
    assert log.end_of_epoch(0) is None
    for leader_epoch in (3, 3, 5):
        log.append(batch(), leader_epoch=leader_epoch)
    assert [log.epoch_of(offset) for offset in range(4)] == [3, 3, 5, 5]
    assert [log.end_of_epoch(epoch) for epoch in (3, 4, 5)] == [(3, 2), (3, 2), (5, 3)]


def test_refused_batch_leaves_no_trace(open_log: Open, batch: Batch, tmp_path: Path) -> None:
    log = open_log()
    log.append(batch())
    before = (tmp_path / "00000000000000000000.log").read_bytes()
    damaged = bytearray(batch())
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatchError):
        log.append(batch() + damaged)
    assert log.log_end_offset == 1
    assert (tmp_path / "00000000000000000000.log").read_bytes() == before


# --- idempotent producers -------------------------------------------------------------------------------------


def test_repeated_batch_gets_its_old_offsets(open_log: Open, batch: Batch) -> None:
    log = open_log()
    sent = [batch([START] * 2, producer_id=9, producer_epoch=0, base_sequence=2 * n) for n in range(6)]
    results = [log.append(each) for each in sent]
    again = log.append(sent[3])
    assert again.is_duplicate
    assert (again.base_offset, again.last_offset) == (results[3].base_offset, results[3].last_offset)
    with pytest.raises(OutOfOrderSequenceError):
        log.append(sent[0])  # the batch before the last five is no longer remembered
    assert log.log_end_offset == 12


@pytest.mark.parametrize("was_clean", [True, False])
def test_producers_survive_a_restart(open_log: Open, batch: Batch, was_clean: bool) -> None:
    log = open_log({"segment.bytes": 500})
    sent = [batch([START] * 2, producer_id=9, producer_epoch=0, base_sequence=2 * n) for n in range(20)]
    for each in sent:
        log.append(each)
    log.close() if was_clean else log.release()
    log = open_log({"segment.bytes": 500}, was_clean=was_clean)
    for recent in sent[-5:]:
        assert log.append(recent).is_duplicate
    assert log.append(batch(producer_id=9, producer_epoch=0, base_sequence=40)).base_offset == 40
    with pytest.raises(OutOfOrderSequenceError):
        log.append(batch(producer_id=9, producer_epoch=0, base_sequence=42))


def test_producers_of_an_emptied_log_survive_a_restart(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch(producer_id=9, producer_epoch=0, base_sequence=0))
    log.roll()
    log.delete_records(1)
    log.close()
    log = open_log(was_clean=True, recovery_point=1, log_start_offset=1)
    assert log.append(batch(producer_id=9, producer_epoch=0, base_sequence=0)).is_duplicate


def test_silent_producers_are_forgotten(open_log: Open, batch: Batch, clock: Any) -> None:
    log = open_log()
    log.append(batch([5], producer_id=9, producer_epoch=0, base_sequence=0))
    clock.advance_ms(999)
    log.tick(producer_expiration_ms=1000)
    assert [entry.producer_id for entry in log.producers] == [9]
    clock.advance_ms(1)
    log.tick(producer_expiration_ms=1000)
    assert list(log.producers) == []


# --- rolling --------------------------------------------------------------------------------------------------


def test_rolls_by_size(open_log: Open, batch: Batch, tmp_path: Path) -> None:
    size = len(batch())
    log = open_log({"segment.bytes": 3 * size})
    for _ in range(7):
        log.append(batch())
    assert names(tmp_path, ".log") == [f"{base:020d}.log" for base in (0, 3, 6)]
    assert names(tmp_path, ".snapshot") == [f"{base:020d}.snapshot" for base in (3, 6)]
    assert offsets(log.read(2, 10_000)) == [(2, 2)], "a read ends with its segment"
    assert offsets(log.read(3, 10_000)) == [(3, 3), (4, 4), (5, 5)]


def test_rolls_by_age_of_timestamps(open_log: Open, batch: Batch, tmp_path: Path) -> None:
    log = open_log({"segment.ms": 1000})
    for time_ms in (START, START + 1000, START + 1001, START + 1500):
        log.append(batch([time_ms]))
    assert names(tmp_path, ".log") == [f"{base:020d}.log" for base in (0, 2)]


def test_the_newest_batch_of_a_request_counts_for_the_age(open_log: Open, batch: Batch, tmp_path: Path) -> None:
    log = open_log({"segment.ms": 1000})
    log.append(batch([START]))
    log.append(batch([START + 1001]) + batch([START + 1]))
    assert names(tmp_path, ".log") == [f"{base:020d}.log" for base in (0, 1)]


def test_rolls_by_age_of_the_segment_without_timestamps(
    open_log: Open, batch: Batch, clock: Any, tmp_path: Path
) -> None:
    log = open_log({"segment.ms": 1000})
    log.append(batch([-1]))
    clock.advance_ms(1001)
    log.append(batch([-1]))
    assert names(tmp_path, ".log") == [f"{base:020d}.log" for base in (0, 1)]


def test_jitter_rolls_earlier(open_log: Open, batch: Batch) -> None:
    log = open_log({"segment.ms": 1000, "segment.jitter.ms": 1000})
    jitter = log._local.jitter_ms(0)
    assert 0 < jitter < 1000
    for time_ms in (START, START + 1000 - jitter, START + 1001 - jitter):
        log.append(batch([time_ms]))
    assert len(log.segments) == 2


def test_rolls_when_an_index_is_full(open_log: Open, batch: Batch, tmp_path: Path) -> None:
    log = open_log({"segment.index.bytes": 96, "index.interval.bytes": 0})
    for n in range(20):
        log.append(batch([START + n]))
    assert names(tmp_path, ".log") == [f"{base:020d}.log" for base in (0, 8, 16)]


def test_indexes_are_preallocated_and_trimmed(open_log: Open, batch: Batch, tmp_path: Path) -> None:
    log = open_log({"segment.index.bytes": 1000, "index.interval.bytes": 0})
    log.append(batch())
    log.append(batch())
    assert (tmp_path / "00000000000000000000.index").stat().st_size == 1000
    assert (tmp_path / "00000000000000000000.timeindex").stat().st_size == 996
    log.roll()
    assert (tmp_path / "00000000000000000000.index").stat().st_size == 8
    log.close()
    assert (tmp_path / "00000000000000000002.index").stat().st_size == 0


# --- reading --------------------------------------------------------------------------------------------------


def test_reads_whole_batches_within_limits(open_log: Open, batch: Batch) -> None:
    log = open_log({"index.interval.bytes": 100})
    size = len(batch([START] * 2))
    for _ in range(50):
        log.append(batch([START] * 2))
    assert offsets(log.read(31, 3 * size + 5)) == [(30, 31), (32, 33), (34, 35)]
    assert offsets(log.read(31, 1)) == [(30, 31)]
    assert log.read(31, 1, min_one_batch=False) == b""
    assert offsets(log.read(10, 10_000, end_offset=13)) == [(10, 11), (12, 13)]
    assert log.read(10, 10_000, end_offset=10) == b""
    assert log.read(100, 10_000) == b""


@pytest.mark.parametrize("offset", [-1, 3, 100])
def test_offset_out_of_range_names_what_is_there(open_log: Open, batch: Batch, offset: int) -> None:
    log = open_log()
    log.append(batch([START] * 2))
    with pytest.raises(OffsetOutOfRangeError, match=r"orders-3.*0\.\.1 \(next: 2\)"):
        log.read(offset, 1000)


def test_look_up_by_time_finds_the_record(open_log: Open, batch: Batch) -> None:
    log = open_log({"index.interval.bytes": 100, "segment.bytes": 1000})
    times = [[START + 10 * n, START + 10 * n + 5] for n in range(40)]
    for pair in times:
        log.append(batch(pair))
    assert log.offset_for_time(0) == (0, START)
    assert log.offset_for_time(START + 201) == (41, START + 205)
    assert log.offset_for_time(START + 395) == (79, START + 395)
    assert log.offset_for_time(START + 396) is None
    assert log.max_timestamp_offset() == (79, START + 395)


def test_look_up_by_time_finds_the_first_record_although_times_are_out_of_order(open_log: Open, batch: Batch) -> None:
    log = open_log({"index.interval.bytes": 0, "segment.bytes": 400})
    times = [500, 100, 900, 200, 300, 901, 50, 902, 10]
    for time_ms in times:
        log.append(batch([time_ms]))
    for wanted in range(0, 910, 7):
        expected = next(((n, time_ms) for n, time_ms in enumerate(times) if time_ms >= wanted), None)
        assert log.offset_for_time(wanted) == expected
    assert log.max_timestamp_offset() == (7, 902)


def test_look_up_by_time_in_typed_batches_needs_no_schema(open_log: Open) -> None:
    log = open_log()
    columns = pa.record_batch({"price": pa.array([1.0, 2.0, 3.0]), "name": pa.array(["a", "b", "c"])})
    for compression in (0, 3, 4):
        log.append(
            bytes(
                build_columnar_batch(
                    columns, schema_id=7, timestamps_ms=pa.array([10, 20, 30], pa.int64()), compression=compression
                )
            )
        )
    assert log.offset_for_time(15) == (1, 20)
    assert log.offset_for_time(31) is None


def test_an_empty_log_has_no_records_times_and_extents(open_log: Open) -> None:
    log = open_log()
    assert log.read(0, 100) == b""
    assert log.offset_for_time(0) is None
    assert log.max_timestamp_offset() is None
    assert log.locate(0, 0) == []


# --- locating -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split_bytes", [0, 1, 300, 1000, 10**6])
def test_extents_tile_the_range(open_log: Open, batch: Batch, split_bytes: int) -> None:
    log = open_log({"index.interval.bytes": 200, "segment.bytes": 3000})
    for n in range(100):
        log.append(batch([START] * (1 + n % 3)))
    for start, end in ((0, log.log_end_offset), (1, 2), (17, 90), (50, 50)):
        extents = log.locate(start, end, split_bytes)
        edges = [extent.start_offset for extent in extents] + [end]
        assert edges[0] == start
        assert [extent.end_offset for extent in extents] == edges[1:]
        for extent in extents:
            content = extent.path.read_bytes()[extent.start_position : extent.end_position]
            assert read_header(content).base_offset <= extent.start_offset < extent.end_offset
            assert offsets(content)[-1][1] >= extent.end_offset - 1
            if split_bytes:
                assert len(content) <= max(1.5 * split_bytes + 200, 300)


def test_locate_refuses_what_is_not_there(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch([START] * 3))
    with pytest.raises(OffsetOutOfRangeError):
        log.locate(0, 4)
    with pytest.raises(InvalidRequestError, match="ends before it starts"):
        log.locate(2, 1)


# --- retention ------------------------------------------------------------------------------------------------


def test_retention_by_size_keeps_readers_and_names(open_log: Open, batch: Batch, clock: Any, tmp_path: Path) -> None:
    size = len(batch())
    log = open_log({"segment.bytes": 2 * size, "retention.bytes": 4 * size, "file.delete.delay.ms": 5000})
    for _ in range(9):
        log.append(batch())
    assert log.apply_retention() == 2
    assert (log.log_start_offset, log.log_end_offset) == (4, 9)
    with pytest.raises(OffsetOutOfRangeError):
        log.read(3, 100)
    assert log.epochs.entries == ((0, 4),)
    assert len(names(tmp_path, ".log.deleted")) == 2
    clock.advance_ms(5000)
    log.tick(producer_expiration_ms=10**9)
    assert names(tmp_path, ".deleted") == []


def test_retention_by_time_can_empty_the_log(open_log: Open, batch: Batch, clock: Any) -> None:
    log = open_log({"retention.ms": 1000})
    log.append(batch([clock.now_ms()]))
    clock.advance_ms(1000)
    assert log.apply_retention() == 0
    clock.advance_ms(1)
    assert log.apply_retention() == 1
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)
    assert log.apply_retention() == 0
    assert log.append(batch([clock.now_ms()])).base_offset == 1


def test_a_log_with_the_empty_cleanup_policy_keeps_records_that_nobody_deletes(open_log: Open, batch: Batch) -> None:
    log = open_log({"cleanup.policy": "", "segment.bytes": len(batch()), "retention.bytes": 0, "retention.ms": 0})
    for _ in range(3):
        log.append(batch())
    assert log.apply_retention() == 0
    assert log.delete_records(2) == 2
    assert (len(log.segments), log.log_start_offset) == (1, 2)


# --- durability -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("time_ms", "deleted"), [(-1, 0), (0, 1)])
def test_only_records_without_timestamps_have_the_age_of_their_file(
    open_log: Open, batch: Batch, clock: Any, time_ms: int, deleted: int
) -> None:
    log = open_log({"retention.ms": 1000})
    log.append(batch([time_ms]))
    os.utime(log.segments[0].path, ns=(clock.now_ms() * 10**6,) * 2)
    assert log.apply_retention() == deleted


def test_flush_moves_the_recovery_point(open_log: Open, batch: Batch) -> None:
    log = open_log({"flush.messages": 5})
    log.append(batch([START] * 3))
    assert log.recovery_point == 0
    log.append(batch([START] * 2))
    assert log.recovery_point == 5


@pytest.mark.parametrize("is_offline", [False, True])
def test_retention_leaves_an_offline_log_alone(open_log: Open, batch: Batch, disk: Any, is_offline: bool) -> None:
    log = open_log({"retention.bytes": 0, "segment.bytes": len(batch())}, files=disk)
    for _ in range(3):
        log.append(batch())
    if is_offline:
        disk.refuses_sync = True
        with pytest.raises(StorageError):
            log.flush()
        disk.refuses_sync = False
    assert log.apply_retention() == (0 if is_offline else 3)


def test_tick_flushes_by_time_and_sealed_segments(open_log: Open, batch: Batch, clock: Any) -> None:
    log = open_log({"flush.ms": 2000})
    log.append(batch())
    log.tick(producer_expiration_ms=10**9)
    assert log.recovery_point == 0
    clock.advance_ms(2000)
    log.tick(producer_expiration_ms=10**9)
    assert log.recovery_point == 1
    log.append(batch())
    log.roll()
    log.tick(producer_expiration_ms=10**9)
    assert log.recovery_point == 2


@pytest.mark.parametrize("bytes_left", [0, 1, 15, 16, 17, 60, 80])
def test_full_disk_refuses_and_loses_nothing(
    open_log: Open, batch: Batch, disk: Any, tmp_path: Path, bytes_left: int
) -> None:
    log = open_log(files=disk)
    log.append(batch())
    size = (tmp_path / "00000000000000000000.log").stat().st_size
    disk.bytes_left = bytes_left
    with pytest.raises(StorageError, match="no space"):
        log.append(batch())
    assert (tmp_path / "00000000000000000000.log").stat().st_size == size
    assert log.log_end_offset == 1
    disk.bytes_left = 10**6
    assert log.append(batch()).base_offset == 1


def test_full_disk_at_an_index_entry_undoes_the_append(open_log: Open, batch: Batch, disk: Any) -> None:
    log = open_log({"index.interval.bytes": 0}, files=disk)
    log.append(batch())
    disk.bytes_left = len(batch()) + 4
    with pytest.raises(StorageError):
        log.append(batch())
    disk.bytes_left = 10**6
    log.append(batch([START + 1]))
    log.close()
    log = open_log(was_clean=True)
    assert offsets(log.read(0, 1000)) == [(0, 0), (1, 1)]
    assert log.offset_for_time(START + 1) == (1, START + 1)


def test_a_failure_that_cannot_be_undone_takes_the_partition_offline(open_log: Open, batch: Batch, disk: Any) -> None:
    log = open_log(files=disk)
    log.append(batch())
    disk.bytes_left, disk.refuses_truncate = 20, True
    with pytest.raises(StorageError, match="no space"):
        log.append(batch())
    disk.bytes_left, disk.refuses_truncate = 10**6, False
    with pytest.raises(StorageError, match="accepts no appends because its disk failed"):
        log.append(batch())
    assert offsets(log.read(0, 1000)) == [(0, 0)]
    assert open_log(files=disk).log_end_offset == 1


def test_failed_sync_takes_the_partition_offline(open_log: Open, batch: Batch, disk: Any) -> None:
    log = open_log(files=disk)
    log.append(batch())
    disk.refuses_sync = True
    with pytest.raises(StorageError):
        log.flush()
    with pytest.raises(StorageError, match="accepts no appends"):
        log.append(batch())
    assert log.recovery_point == 0


def test_closed_log_refuses_appends(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch())
    log.close()
    with pytest.raises(MillraceError, match="closed"):
        log.append(batch())
