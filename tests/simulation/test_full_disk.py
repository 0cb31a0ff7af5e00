"""Tests of a full disk.

Space can be freed, and no crash meanwhile loses a record.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import DiskFullError
from millrace.records import ControlType, EndTransactionMarker, Record, build_rows_batch
from millrace_broker.log import LogManager, PartitionLog
from millrace_broker.log.checkpoints import RECOVERY_POINTS, read_offsets
from millrace_broker.log.tiered.settings import TieringSettings
from millrace_broker.log.tiered.store import ArrowStore

from .contents import read_all
from .disk import SimulatedDisk
from .world import WorldClock

DATA = Path("/data")
PRODUCER_ID = 7
KEY = ("orders", 0)
SYNCED = 21
"""The recovery point of the log that ``fill`` makes."""


def open_manager(
    disk: SimulatedDisk, clock: WorldClock, directories: Sequence[Path] = (DATA,), **options: object
) -> LogManager:
    defaults = {"segment.bytes": 700, "segment.index.bytes": 96, "retention.ms": -1, "file.delete.delay.ms": 1000}
    return LogManager.open(
        directories,
        broker_id=1,
        cluster_id="rivers",
        defaults=TopicConfig.load(defaults | options),
        files=disk,
        clock=clock,
        retention_check_interval_ms=1000,
        checkpoint_interval_ms=1000,
    )


def produced(sequence: int, epoch: int = 0) -> bytes:
    record = Record(key=None, value=b"value %d" % sequence, timestamp_ms=1)
    return build_rows_batch(
        [record], producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence, leader_epoch=epoch
    )


def fill(manager: LogManager, count: int = 40) -> PartitionLog:
    """Append records in several epochs and segments, and let the manager write its checkpoints in between."""
    log = manager.create_log("orders", UUID(int=1), 0)
    for sequence in range(count):
        log.append(produced(sequence), leader_epoch=sequence // 7)
        if log.log_end_offset == SYNCED:
            log.flush()
            manager.checkpoint()
    assert len(log.segments) > 3
    return log


def after_crash(disk: SimulatedDisk, chance: random.Random) -> list[SimulatedDisk]:
    return [disk.after_kill(), disk.after_power_loss(random.Random(chance.getrandbits(32)))]


def check(log: PartitionLog, start: int, end: int) -> None:
    """Check that a log has all records from ``start`` on, with their epochs and the producer."""
    assert [offset for offset, _ in read_all(log) if offset >= start] == list(range(start, end))
    assert [log.epoch_of(offset) for offset in range(start, end)] == [offset // 7 for offset in range(start, end)]
    producer = log.find_producer(PRODUCER_ID)
    assert producer is not None
    assert producer.last_sequence == end - 1


def test_retention_frees_a_full_disk(seed: int) -> None:
    disk, clock, chance = SimulatedDisk(seed=seed), WorldClock(), random.Random(seed)
    manager = open_manager(disk, clock)
    log = fill(manager)
    log.flush()
    log.config = log.config.model_copy(update={"retention_ms": 0})
    last = log.segments[-1].base_offset
    disk.fill(DATA)
    crashed: list[SimulatedDisk] = []
    disk.on_step = lambda: crashed.extend(after_crash(disk, chance))
    manager.tick()  # the last segment stays, because a new one would need space
    assert [segment.base_offset for segment in log.segments] == [last]
    check(log, last, 40)
    clock.ms += 1000
    manager.tick()
    assert not [path for path in disk.paths(DATA) if path.suffix == ".deleted"]
    with pytest.raises(DiskFullError):
        log.append(produced(40), leader_epoch=6)
    disk.on_step = lambda: None
    assert len(crashed) > 20
    for each in crashed:
        recovered = open_manager(each, clock)
        assert recovered.offline() == {}
        again = recovered.logs()[0]
        assert again.log_start_offset <= last
        check(again, last, 40)  # before it a power failure may bring some segments back
    disk.mend()
    clock.ms += 1000
    manager.tick()
    assert log.log_start_offset == 40
    assert log.append(produced(40), leader_epoch=6).base_offset == 40


def test_a_broker_that_was_killed_starts_on_a_full_disk_and_frees_it() -> None:
    disk, clock = SimulatedDisk(), WorldClock()
    fill(open_manager(disk, clock))
    for _ in range(2):  # the second start finds what the first one could not write
        disk = disk.after_kill()
        disk.fill(DATA)
        manager = open_manager(disk, clock)
        assert manager.offline() == {}
        (log,) = manager.logs()
        check(log, 0, 40)
    log.config = log.config.model_copy(update={"retention_ms": 0})
    manager.tick()
    assert len(log.segments) == 1
    check(log, log.log_start_offset, 40)
    disk.mend()
    assert log.append(produced(40), leader_epoch=6).base_offset == 40
    manager.close()
    (log,) = open_manager(disk, clock).logs()
    assert read_all(log)[-1][0] == 40


def test_deleted_records_free_a_full_disk() -> None:
    disk, clock = SimulatedDisk(), WorldClock()
    manager = open_manager(disk, clock)
    log = fill(manager)
    disk.fill(DATA)
    # The new start is not on the disk, so the call fails, but the space of whole segments is free.
    with pytest.raises(DiskFullError):
        manager.delete_records(*KEY, 37)
    assert log.log_start_offset == 37
    assert len(log.segments) == 1
    disk.mend()
    assert manager.delete_records(*KEY, 37) == 37
    (again,) = open_manager(disk.after_kill(), clock).logs()
    check(again, 37, 40)


def aborted(log: PartitionLog) -> list[tuple[int, int]]:
    return [(each.first_offset, each.last_offset) for each in log.aborted_transactions(0, log.log_end_offset)]


@pytest.mark.parametrize("cut", [37, 30, 21])
def test_a_truncation_on_a_full_disk_completes(cut: int, seed: int) -> None:
    disk, clock, chance = SimulatedDisk(seed=seed), WorldClock(), random.Random(seed)
    manager = open_manager(disk, clock)
    log = fill(manager)
    log.hold_watermark(0)
    log.roll()
    for sequence in range(3):
        abort(log, sequence)
    before = aborted(log)
    assert len(before) == 3
    disk.fill(DATA)
    crashed: list[SimulatedDisk] = []
    disk.on_step = lambda: crashed.extend(after_crash(disk, chance))
    assert manager.truncate({KEY: 42}) == {}  # inside the segment with the transactions
    assert aborted(log) == before[:1]
    assert manager.truncate({KEY: cut}) == {}
    disk.on_step = lambda: None
    assert log.log_end_offset == cut
    assert aborted(log) == []
    with pytest.raises(DiskFullError):
        log.append(produced(cut), leader_epoch=9)
    for number, each in enumerate(crashed):
        recovered = open_manager(each, clock)
        assert recovered.offline() == {}
        was_kill = number % 2 == 0
        assert recovered.logs()[0].log_end_offset >= (cut if was_kill else SYNCED)
    disk.mend()
    log.raise_watermark(cut)
    assert [found for found, _ in read_all(log)] == list(range(cut))
    assert log.append(build_rows_batch([Record(key=None, value=b"v", timestamp_ms=2)]), leader_epoch=9)
    log.raise_watermark(cut + 1)
    assert log.offset_for_time(2) == (cut, 2)
    manager.close()
    (again,) = open_manager(disk, clock).logs()
    assert [found for found, _ in read_all(again)] == list(range(cut + 1))
    assert again.epoch_of(cut) == 9


def abort(log: PartitionLog, sequence: int) -> None:
    """Append a batch in a transaction, and the marker that aborts it."""
    record = Record(key=None, value=b"aborted", timestamp_ms=1)
    batch = build_rows_batch([record], producer_id=9, producer_epoch=0, base_sequence=sequence, is_transactional=True)
    log.append(batch, leader_epoch=6, in_transaction=True)
    marker = EndTransactionMarker(type=ControlType.ABORT, coordinator_epoch=0)
    log.append_end_marker_unsynced(9, 0, marker, leader_epoch=6)


def test_a_truncation_that_needs_space_has_no_effect_and_may_be_tried_again() -> None:
    disk, clock = SimulatedDisk(), WorldClock()
    manager = open_manager(disk, clock)
    log = fill(manager)
    manager.checkpoint()
    disk.fill(DATA)
    # Readers may have mapped what is removed, so that it is not cut in place.
    assert isinstance(manager.truncate({KEY: 38})[KEY], DiskFullError)
    check(log, 0, 40)
    # The recovery point must be lowered first.
    log.flush()
    for _ in range(2):
        assert isinstance(manager.truncate({KEY: 10})[KEY], DiskFullError)
    check(log, 0, 40)
    with pytest.raises(DiskFullError):
        manager.begin_at(*KEY, 100)
    check(log, 0, 40)
    disk.mend()
    assert manager.truncate({KEY: 38}) == {}
    check(log, 0, 38)
    (again,) = open_manager(disk.after_kill(), clock).logs()
    check(again, 0, 38)


@pytest.mark.parametrize("is_tiering", [False, True])
def test_a_full_directory_does_not_hold_up_the_others(tmp_path: Path, is_tiering: bool) -> None:
    disk, clock = SimulatedDisk(), WorldClock()
    full, other = Path("/disks/a/data"), Path("/disks/b/data")
    manager = open_manager(disk, clock, (full, other))
    if is_tiering:
        manager.start_tiering(TieringSettings(), ArrowStore(f"file://{tmp_path}"))
    tiered = manager.create_log("tiered", UUID(int=1), 0, TopicConfig.load({"remote.storage.enable": True}))
    log = manager.create_log("orders", UUID(int=2), 0, TopicConfig.load({"segment.bytes": 700, "retention.ms": 0}))
    assert (tiered.directory.parent, log.directory.parent) == (full, other)
    for each in (tiered, log):
        each.append(produced(0))
        each.flush()
    disk.fill(full)
    clock.ms += 1000
    manager.tick()
    assert read_offsets(disk, other / RECOVERY_POINTS) == {KEY: 1}
    assert log.log_start_offset == 1
    assert tiered.log_start_offset == 0
    manager.close()
