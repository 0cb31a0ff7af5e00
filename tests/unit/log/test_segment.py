"""Tests of one segment: missing or wrong indexes, read-only readers and failing rolls."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import CorruptBatchError, StorageError
from millrace.records import scan_headers
from millrace_broker.log import PartitionLog

INDEXED = {"index.interval.bytes": 1, "file.delete.delay.ms": 0}
OFFSET_ENTRY_BYTES = 8
MAGIC_POSITION = 16

OpenLog = Callable[..., PartitionLog]
Batch = Callable[..., bytes]


def first_offset(data: bytes) -> int:
    return next(scan_headers(data))[1].base_offset


def test_an_empty_partition_needs_no_index_files(
    open_log: OpenLog, batch: Batch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(was_clean=True)
    assert log.offset_for_time(0) is None
    assert log.max_timestamp_offset() is None
    assert not list(tmp_path.glob("*index"))
    log.append(batch([5]))
    assert log.offset_for_time(0) == (0, 5)
    assert not caplog.records


def test_a_damaged_entry_of_the_growing_segment_is_done_without(
    open_log: OpenLog, batch: Batch, tmp_path: Path
) -> None:
    log = open_log(INDEXED)
    for n in range(20):
        log.append(batch([n]))
    log.close()
    index = tmp_path / f"{0:020}.index"
    damaged = bytearray(index.read_bytes())
    # not the last entry, because the start checks that one
    struct.pack_into(">i", damaged, 5 * OFFSET_ENTRY_BYTES + 4, 777)
    index.write_bytes(damaged)
    log = open_log(INDEXED, was_clean=True)
    log.append(batch([20]))
    assert [first_offset(log.read(offset, 1)) for offset in range(21)] == list(range(21))
    assert [log.offset_for_time(time_ms) for time_ms in range(21)] == [(n, n) for n in range(21)]
    extents = log.locate(0, 21, 100)
    assert (extents[0].start_offset, extents[-1].end_offset) == (0, 21)


def test_a_damaged_entry_of_a_sealed_segment_is_rebuilt(
    open_log: OpenLog, batch: Batch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(INDEXED)
    for n in range(20):
        log.append(batch([n]))
    log.close()
    index = tmp_path / f"{0:020}.index"
    sound = index.read_bytes()
    for position in (777, -5, 2**31 - 1):
        damaged = bytearray(sound)
        struct.pack_into(">i", damaged, 5 * OFFSET_ENTRY_BYTES + 4, position)
        index.write_bytes(damaged)
        log = open_log(INDEXED, was_clean=True)
        assert [first_offset(log.read(offset, 1)) for offset in range(20)] == list(range(20))
        assert "does not point to a batch" in caplog.text
        caplog.clear()
        log.release()
        assert index.read_bytes() == sound


def test_the_last_batch_is_found_without_reading_the_ones_before(
    open_log: OpenLog, batch: Batch, tmp_path: Path
) -> None:
    log = open_log()
    for n in range(5):
        log.append(batch([n, n]))
    with (tmp_path / f"{0:020}.log").open("r+b") as file:
        file.seek(MAGIC_POSITION)
        file.write(b"\x07")
    assert [first_offset(log.read(offset, 1)) for offset in (8, 9)] == [8, 8]
    with pytest.raises(CorruptBatchError):
        log.read(7, 1)


def test_the_last_batch_is_found_without_a_read(
    open_log: OpenLog, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    log.append(batch([0, 1]))
    log.append(batch([2, 3, 4]))
    [segment] = log.segments
    first, last = list(segment.batches())
    monkeypatch.setattr(segment, "file", None)
    assert [segment.find(offset) for offset in (2, 3, 4)] == [last] * 3
    assert segment.find(5) is None
    monkeypatch.undo()
    assert segment.find(1) == first
    assert segment.find(2, limit=last[0]) is None


def test_a_deleted_segment_writes_no_index_files(
    open_log: OpenLog, batch: Batch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log({"segment.bytes": 200, "retention.bytes": 100, "retention.ms": -1})
    for n in range(4):
        log.append(batch([n]))
    held = log.segments[0]
    held.file()
    assert log.apply_retention()
    assert held.find(0) is not None
    assert not (tmp_path / f"{0:020}.index").exists()
    assert not caplog.records


@pytest.mark.parametrize("refuse", ["truncate", "write"])
def test_a_roll_that_fails_leaves_the_old_segment_growing(
    open_log: OpenLog, batch: Batch, tmp_path: Path, disk: Any, refuse: str
) -> None:
    log = open_log({"segment.bytes": 300}, files=disk)
    for n in range(3):
        log.append(batch([n]))
    assert len(log.segments) == 1
    before = sorted(path.name for path in tmp_path.iterdir())
    if refuse == "truncate":
        disk.refuses_truncate = True
    else:
        disk.bytes_left = 0
    with pytest.raises(StorageError):
        log.append(batch([3]))
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".log") == [f"{0:020}.log"]
    assert {path for path in before if "index" in path} == {path.name for path in tmp_path.glob("*index")}
    disk.refuses_truncate, disk.bytes_left = False, 2**40
    assert [log.append(batch([n])).base_offset for n in (3, 4)] == [3, 4]
    log.close()
    again = open_log({"segment.bytes": 300})
    assert [first_offset(again.read(offset, 1)) for offset in range(5)] == list(range(5))
