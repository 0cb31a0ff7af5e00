"""Tests of crashes and power failures during a partition's directory move.

The partition is then complete in exactly one log directory.
"""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

from millrace.config.topic import TopicConfig
from millrace.records import Record, build_rows_batch
from millrace_broker.log import LogManager, PartitionLog

from .contents import read_all
from .disk import SimulatedDisk
from .world import WorldClock

SOURCE, TARGET = Path("/disks/a/data"), Path("/disks/b/data")
KEY = ("orders", 0)
PRODUCER_ID = 7


def open_manager(disk: SimulatedDisk) -> LogManager:
    return LogManager.open(
        [SOURCE, TARGET],
        broker_id=1,
        cluster_id="rivers",
        defaults=TopicConfig.load({"segment.bytes": 700, "segment.index.bytes": 96, "retention.ms": -1}),
        files=disk,
        clock=WorldClock(),
    )


def produced(sequence: int) -> bytes:
    record = Record(key=None, value=f"value {sequence}".encode(), timestamp_ms=1)
    return build_rows_batch([record], producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence)


def content(log: PartitionLog) -> tuple[object, ...]:
    entry = log.find_producer(PRODUCER_ID)
    assert entry is not None
    return read_all(log), log.log_start_offset, log.epochs.entries, entry.last_sequence


def test_after_a_crash_at_any_step_the_partition_is_in_one_directory(seed: int) -> None:
    disk, chance = SimulatedDisk(seed=seed), random.Random(seed)
    for mounted in (SOURCE, TARGET):
        disk.make_directory(mounted)
        for parent in mounted.parents:
            disk.sync_directory(parent)
    manager = open_manager(disk)
    log = manager.create_log("orders", UUID(int=1), 0)
    for sequence in range(30):
        log.append(produced(sequence), leader_epoch=sequence // 10)
    log.flush()
    assert manager.delete_records(*KEY, 11) == 11
    manager.checkpoint()
    before = content(log)
    ends: list[SimulatedDisk] = []

    def end() -> None:
        ends.append(disk.after_kill())
        ends.append(disk.after_power_loss(random.Random(chance.getrandbits(32))))

    moves, target = manager.moves, next(each for each in manager._directories if each.path == TARGET)
    moves._targets[KEY] = target
    assert moves._workers.take(KEY)
    disk.on_step = end
    moves._move(KEY, target)
    end()
    assert len(ends) > 100
    homes = set()
    for each in ends:
        again = open_manager(each)
        assert not again.offline()
        assert content(again.logs()[0]) == before
        again.logs()[0].append(produced(30), leader_epoch=2)
        again.close()
        directories = [path / name for path in (SOURCE, TARGET) for name in each.names(path)]
        (home,) = (path for path in directories if each.is_directory(path))
        homes.add(home)
        last = open_manager(each)
        assert last.logs()[0].log_end_offset == 31
        last.close()
    assert homes == {SOURCE / "orders-0", TARGET / "orders-0"}
