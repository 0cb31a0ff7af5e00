"""Tests of flipped bits in any file.

Reads return the appended records or an error.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace.records import scan_headers
from millrace_broker.log import LogManager

from .contents import read_all
from .disk import SimulatedDisk
from .promises import Partition
from .world import DATA, World

Records = list[tuple[int, tuple[bytes, bytes | None, int]]]


def filled(seed: int, *, is_closed: bool) -> tuple[World, dict[str, Records]]:
    """Return partitions with a history, and their records."""
    world = World(seed, look=0)
    while len(world.partitions) < 2 or any(partition.end < 60 for partition in world.partitions.values()):
        world.run(20)
        for partition in world.partitions.values():
            partition.is_settled = True
    held = {log.topic: read_all(log) for log in world.manager.logs()}
    if is_closed:
        world.manager.close()
    else:
        for log in world.manager.logs():
            log.flush()
        world.manager.checkpoint()
    return world, held


def flipped(disk: SimulatedDisk, choose: random.Random) -> tuple[SimulatedDisk, Path, int] | None:
    """Return a copy of the disk with one flipped bit. Each file is equally likely."""
    copy = disk.after_kill()
    path = choose.choice(copy.paths(DATA))
    size = copy.size_bytes(path)
    if not size:
        return None
    bit = choose.randrange(8 * size)
    if is_beyond_all_checks(copy, path, bit):
        return None
    copy.flip(path, bit)
    return copy, path, bit


def is_beyond_all_checks(disk: SimulatedDisk, path: Path, bit: int) -> bool:
    """Tell whether a bit is in an offset of a log with gaps.

    Kafka's checksum does not cover offsets, and a batch may move within a gap.
    """
    if not path.name.endswith(".log") or not path.parent.name.startswith("latest-"):
        return False
    data = disk.read_bytes(path) or b""
    return any(position <= bit // 8 < position + 8 for position, _ in scan_headers(data))


def check(world: World, disk: SimulatedDisk, held: dict[str, Records]) -> bool:
    """Open the copy and read all records. Return whether the damage was noticed."""
    disk.now_ms = world.clock.now_ms
    try:
        manager = world._open(disk)
    except MillraceError:
        return True
    noticed = False
    for partition in world.partitions.values():
        noticed |= check_partition(manager, partition, held[partition.topic])
    return noticed


def check_partition(manager: LogManager, partition: Partition, held: Records) -> bool:
    try:
        log = manager.get(partition.topic, 0)
        if log is None or log.topic_id != partition.topic_id:
            return True
        found = read_all(log)
        entries = log.epochs.entries
        epochs = [next((e for e, start in reversed(entries) if start <= offset), None) for offset, _ in found]
    except MillraceError:
        return True
    assert found == held
    assert epochs == [partition.records[offset].epoch for offset, _ in found]  # as they were written
    return False


@pytest.mark.dial("LOG_FLIP_ROUNDS", seconds=0.1)
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_flipped_bit_of_any_file_gives_the_records_or_an_error(rounds: int, seed: int, is_closed: bool) -> None:
    choose = random.Random(seed)
    world, held = filled(seed, is_closed=is_closed)
    noticed = 0
    for _ in range(rounds):
        damaged = flipped(world.disk, choose)
        if damaged is None:
            continue
        disk, path, bit = damaged
        try:
            noticed += check(world, disk, held)
        except BaseException:
            print(f"bit {bit} of {path}")
            raise
    assert noticed > rounds / 10
