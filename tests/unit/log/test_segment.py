"""Tests of one segment.

The tests cover missing or wrong indexes, read-only readers and failing rolls.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import CorruptBatchError, StorageError
from millrace.records import scan_headers
from millrace_broker.log import PartitionLog

INDEXED = {"index.interval.bytes": 1, "file.delete.delay.ms": 0}
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
MAGIC_POSITION = 16
LAST_OFFSET_DELTA_POSITION = 23

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


def test_look_ups_are_correct_despite_a_damaged_time_entry_of_the_active_segment(
    open_log: OpenLog, batch: Batch, tmp_path: Path
) -> None:
    log = open_log(INDEXED)
    for n in range(20):
        log.append(batch([10 * n]))
    log.close()
    index = tmp_path / f"{0:020}.timeindex"
    damaged = bytearray(index.read_bytes())
    struct.pack_into(">q", damaged, 5 * TIME_ENTRY_BYTES, 65)  # not the last entry, because the start checks that one
    index.write_bytes(damaged)
    log = open_log(INDEXED, was_clean=True)
    log.append(batch([200]))
    for before_ms in (0, 3):  # 67 is looked up from the damaged entry
        assert [log.offset_for_time(10 * n - before_ms) for n in range(21)] == [(n, 10 * n) for n in range(21)]
    assert index.read_bytes()[: len(damaged)] == damaged


@pytest.mark.parametrize("grows", [True, False])
def test_a_damaged_offset_in_the_time_index_hides_no_record(
    open_log: OpenLog, batch: Batch, tmp_path: Path, grows: bool
) -> None:
    log = open_log(INDEXED)
    for n in range(20):
        log.append(batch([10 * n]))
    log.close()
    index = tmp_path / f"{0:020}.timeindex"
    damaged = bytearray(index.read_bytes())
    struct.pack_into(">i", damaged, 5 * TIME_ENTRY_BYTES + 8, 15)  # a start checks the last entry
    index.write_bytes(damaged)
    log = open_log(INDEXED, was_clean=True)
    if grows:
        log.append(batch([200]))
    assert [log.offset_for_time(10 * n - 3) for n in range(20)] == [(n, 10 * n) for n in range(20)]


def test_look_ups_are_correct_despite_a_damaged_index_entry_of_the_active_segment(
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
        backwards = range(19, -1, -1)  # a read that continues another one needs no index
        assert [first_offset(log.read(offset, 1)) for offset in backwards] == list(backwards)
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


@pytest.mark.parametrize("refuse", ["truncate", "write", "index"])
def test_a_roll_that_fails_leaves_the_old_segment_growing(
    open_log: OpenLog, batch: Batch, tmp_path: Path, disk: Any, refuse: str
) -> None:
    log = open_log({"segment.bytes": 300}, files=disk)
    for n in range(3):
        log.append(batch([n]))
    assert len(log.segments) == 1
    before = sorted(path.name for path in tmp_path.iterdir())
    if refuse != "write":  # with "index" the new segment's .log exists already
        disk.refuses_truncate, disk.refused_suffix = True, "" if refuse == "truncate" else ".index"
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


@pytest.mark.parametrize("refuses_remove", [False, True])
def test_a_roll_whose_new_segment_cannot_be_removed_takes_the_partition_offline(
    open_log: OpenLog, batch: Batch, tmp_path: Path, disk: Any, refuses_remove: bool
) -> None:
    log = open_log(files=disk)
    log.append(batch([0]))
    disk.refuses_truncate, disk.refused_suffix, disk.refuses_remove = True, ".index", refuses_remove
    with pytest.raises(StorageError, match="input/output error"):
        log.roll()
    disk.refuses_truncate = disk.refuses_remove = False
    assert (tmp_path / f"{1:020}.log").exists() is refuses_remove
    if refuses_remove:
        with pytest.raises(StorageError, match="accepts no appends because its disk failed"):
            log.append(batch([1]))
    else:
        assert disk.removals.index(f"{1:020}.log") < len(disk.removals) - 1
        assert disk.removals[-1] == "sync", "a power failure does not bring it back"
        assert log.append(batch([1])).base_offset == 1
    assert len(log.segments) == 1


# --- offsets are outside the checksum, so their order is checked ----------------------------------------------


def with_changed_field(path: Path, batch_number: int, at: int, value: bytes) -> None:
    """Change bytes of a batch; all batches have one size."""
    data = bytearray(path.read_bytes())
    size = len(data) // len(list(scan_headers(bytes(data))))
    data[batch_number * size + at : batch_number * size + at + len(value)] = value
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("read_from", "max_bytes"),
    [
        pytest.param(1, 10_000, id="inside the read"),
        pytest.param(1, 1, id="after the read"),
    ],
)
def test_offsets_out_of_order_are_damage(
    open_log: OpenLog, batch: Batch, tmp_path: Path, read_from: int, max_bytes: int
) -> None:
    log = open_log()
    for n in range(5):
        log.append(batch([n, n]))
    with_changed_field(tmp_path / f"{0:020}.log", 1, 0, struct.pack(">q", 6))
    with pytest.raises(CorruptBatchError, match="are not consecutive: restore the file from a copy"):
        log.read(read_from + 1, max_bytes)


@pytest.mark.parametrize(("offset", "is_refused"), [(2, False), (3, True)])
def test_a_batch_that_reaches_into_the_next_segment_is_damage(
    open_log: OpenLog, batch: Batch, tmp_path: Path, offset: int, is_refused: bool
) -> None:
    log = open_log()
    for n in range(2):
        log.append(batch([n, n]))
    log.roll()
    log.append(batch([2]))
    with_changed_field(tmp_path / f"{0:020}.log", 1, 0, struct.pack(">q", offset))
    if is_refused:
        with pytest.raises(CorruptBatchError, match="are not consecutive"):
            log.read(3, 10_000)
    else:
        assert first_offset(log.read(3, 10_000)) == 2


@pytest.mark.parametrize("number", [1, 2])
def test_a_batch_whose_damaged_header_hides_its_last_record_is_reported(
    open_log: OpenLog, batch: Batch, tmp_path: Path, number: int
) -> None:
    log = open_log(INDEXED)
    for n in range(3):
        log.append(batch([n, n]))
    log.roll()
    log.append(batch([9]))
    log.close()
    with_changed_field(tmp_path / f"{0:020}.log", number, LAST_OFFSET_DELTA_POSITION, struct.pack(">i", 0))
    log = open_log(INDEXED, was_clean=True)
    with pytest.raises(CorruptBatchError, match="checksum"):
        log.read(2 * number + 1, 10_000)


def test_a_batch_longer_than_the_rest_of_its_segment_is_damage(open_log: OpenLog, batch: Batch, tmp_path: Path) -> None:
    log = open_log()
    for n in range(3):
        log.append(batch([n]))
    path = tmp_path / f"{0:020}.log"
    size = path.stat().st_size // 3
    with_changed_field(path, 2, 8, struct.pack(">i", size - 12 + 1))
    [segment] = log.segments
    with pytest.raises(CorruptBatchError, match=rf"position {2 * size} has a length of {size + 1} bytes"):
        list(segment.batches())
    assert [header.base_offset for _, header in segment.batches(limit=2 * size)] == [0, 1]


@pytest.mark.parametrize(("offset", "is_refused"), [(0, True), (1, False), (2, False)])
def test_iteration_requires_ascending_offsets(
    open_log: OpenLog, batch: Batch, tmp_path: Path, offset: int, is_refused: bool
) -> None:
    log = open_log()
    for n in range(2):
        log.append(batch([n]))
    with_changed_field(tmp_path / f"{0:020}.log", 1, 0, struct.pack(">q", offset))
    [segment] = log.segments
    if is_refused:
        with pytest.raises(CorruptBatchError, match=r"offset 0 at position .* does not follow 0"):
            list(segment.batches())
    else:
        assert [header.base_offset for _, header in segment.batches()] == [0, offset]


def test_only_positions_at_which_a_batch_begins_have_an_offset(open_log: OpenLog, batch: Batch) -> None:
    log = open_log(INDEXED)
    for n in range(4):
        log.append(batch([n, n]))
    [segment] = log.segments
    size = segment.size_bytes // 4
    assert [segment.offset_at(n * size) for n in range(4)] == [0, 2, 4, 6]
    for position in (size - 1, size + 1, 4 * size):
        with pytest.raises(CorruptBatchError, match=f"no batch begins at position {position}"):
            segment.offset_at(position)
    assert [segment.end_before(n * size) for n in range(5)] == [0, 2, 4, 6, 8]
    targets = (size - 1, size, size + 1, 2 * size, 4 * size - 1, 4 * size, 4 * size + 1)
    assert [segment.boundary(0, target, 4 * size) // size for target in targets] == [0, 1, 1, 2, 3, 4, 4]
    assert segment.boundary(size, 2 * size - 1, 4 * size) == size
    assert segment.boundary(0, 3 * size, 2 * size) == 2 * size


def test_look_ups_before_the_first_index_entry_need_no_rebuilt_index(
    open_log: OpenLog, batch: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    for n in range(3):
        log.append(batch([n]))
    log.roll()
    assert [log.offset_for_time(n) for n in range(3)] == [(n, n) for n in range(3)]
    assert not caplog.records


def test_a_batch_that_claims_to_reach_over_the_next_one_is_damage(
    open_log: OpenLog, batch: Batch, tmp_path: Path
) -> None:
    log = open_log(INDEXED)
    for n in range(5):
        log.append(batch([n]))
    [segment] = log.segments
    size = segment.size_bytes // 5
    with_changed_field(tmp_path / f"{0:020}.log", 2, 8, struct.pack(">i", 2 * size - 12))
    assert segment.offset_at(2 * size) == 2
    with pytest.raises(CorruptBatchError, match=f"no batch begins at position {3 * size}"):
        segment.offset_at(3 * size)
    assert segment.offset_at(4 * size) == 4


def test_files_are_released_unless_another_thread_opens_them_or_they_grow(open_log: OpenLog, batch: Batch) -> None:
    log = open_log()
    log.append(batch([0]))
    log.roll()
    log.append(batch([1]))
    sealed, growing = log.segments
    file, indexes, appended = sealed.file(), sealed.indexes(), growing.file()
    with ThreadPoolExecutor(1) as other:
        with sealed.lock:
            assert not other.submit(sealed.try_release).result()
        assert sealed.file() is file
        assert sealed.indexes() is indexes
        assert other.submit(sealed.try_release).result()
    assert sealed.file() is not file
    assert sealed.indexes() is not indexes
    assert growing.try_release()
    assert growing.file() is appended
    held = sealed.file()
    sealed.leave()
    assert sealed.try_release()
    assert sealed.file() is held, "its name may belong to another segment by now"


def test_a_missing_log_file_is_named(open_log: OpenLog, batch: Batch, tmp_path: Path) -> None:
    log = open_log()
    log.append(batch([0]))
    log.roll()
    log.append(batch([1]))
    [sealed, _] = log.segments
    sealed.release()
    (tmp_path / f"{0:020}.log").unlink()
    with pytest.raises(CorruptBatchError, match=r"0\.log is missing: restore it from a copy"):
        log.read(0, 100)
