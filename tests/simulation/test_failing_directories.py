"""Tests of one failing log directory of several, at start or later.

The directory goes offline, the others serve, and no record is lost.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from uuid import UUID

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import EnvironmentProblemError, StorageError
from millrace.records import Record, build_rows_batch
from millrace_broker.log import LogManager

from .contents import read_all
from .disk import SimulatedDisk
from .world import WorldClock

FIRST, SECOND = Path("/disks/a/data"), Path("/disks/b/data")
TOPIC_ID = UUID(int=1)


def open_manager(disk: SimulatedDisk, *, threads: int = 1) -> LogManager:
    return LogManager.open(
        [FIRST, SECOND],
        broker_id=1,
        cluster_id="rivers",
        defaults=TopicConfig.load(
            {"segment.bytes": 700, "segment.index.bytes": 96, "flush.ms": 1000, "retention.ms": -1}
        ),
        files=disk,
        clock=WorldClock(),
        recovery_threads=threads,
    )


def batch(value: bytes = b"value") -> bytes:
    return build_rows_batch([Record(key=b"k", value=value, timestamp_ms=1)])


def fill(manager: LogManager, partitions: int = 4) -> None:
    for partition in range(partitions):
        log = manager.create_log("orders", TOPIC_ID, partition)
        for _ in range(20):
            log.append(batch())


def use(manager: LogManager, partition: int) -> None:
    log = manager.logs()[partition]
    log.read(0, 100)
    log.append(batch())
    log.flush()
    manager.checkpoint()


def by_directory(manager: LogManager) -> dict[Path, list[int]]:
    found: dict[Path, list[int]] = {}
    for log in manager.logs():
        found.setdefault(log.directory.parent, []).append(log.partition)
    return found


def test_partitions_go_where_there_are_fewest() -> None:
    manager = open_manager(SimulatedDisk())
    fill(manager, 5)
    assert by_directory(manager) == {FIRST: [0, 2, 4], SECOND: [1, 3]}


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
@pytest.mark.parametrize("action", ["write", "sync", "read", "rename"])
def test_a_disk_that_fails_takes_its_directory_offline(
    code: int, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedDisk()
    manager = open_manager(disk)
    fill(manager)
    disk.fail(SECOND, code, [action])
    with caplog.at_level(logging.ERROR), pytest.raises(StorageError):
        use(manager, partition=1)
    told = [record.getMessage() for record in caplog.records if "is offline" in record.getMessage()]
    assert told
    assert str(SECOND) in told[0]
    assert list(manager.failed_directories()) == [SECOND]
    assert by_directory(manager) == {FIRST: [0, 2]}
    assert sorted(manager.offline()) == [("orders", 1), ("orders", 3)]
    with pytest.raises(StorageError, match=r"orders-3 is offline: cannot "):
        manager.get("orders", 3)
    manager.tick()
    for log in manager.logs():
        log.append(batch())
        log.flush()
        assert len(read_all(log)) == 21
    assert manager.create_log("parcels", UUID(int=2), 0).directory.parent == FIRST
    assert manager.has_directories
    manager.close()

    disk.mend()
    again = open_manager(disk)
    assert again.offline() == {}
    assert all(len(read_all(log)) >= 20 for log in again.logs() if log.topic == "orders")


def test_a_directory_that_fails_at_the_start_is_offline_and_the_others_serve() -> None:
    disk = SimulatedDisk()
    manager = open_manager(disk)
    fill(manager)
    manager.close()
    disk.fail(SECOND, errno.EIO)
    manager = open_manager(disk)
    assert list(manager.failed_directories()) == [SECOND]
    assert by_directory(manager) == {FIRST: [0, 2]}
    # A log that may already exist is not created elsewhere. A certainly new one is.
    with pytest.raises(StorageError, match=r"orders-1 may be in a log directory that is offline \(/disks/b/data\)"):
        manager.create_log("orders", TOPIC_ID, 1, is_new=False)
    assert manager.create_log("parcels", UUID(int=2), 0).directory.parent == FIRST
    manager.close()
    disk.mend()
    assert by_directory(open_manager(disk)) == {FIRST: [0, 2, 0], SECOND: [1, 3]}


def test_a_directory_that_fails_while_its_partitions_load_is_offline() -> None:
    disk = SimulatedDisk()
    manager = open_manager(disk)
    fill(manager)
    manager.close()
    disk.fail(SECOND / "orders-1", errno.EIO, ["read", "open"])
    manager = open_manager(disk, threads=2)
    assert list(manager.failed_directories()) == [SECOND]
    assert by_directory(manager) == {FIRST: [0, 2]}


def test_with_the_last_directory_nothing_is_left() -> None:
    disk = SimulatedDisk()
    manager = open_manager(disk)
    fill(manager)
    disk.fail(Path("/disks"), errno.EIO, ["sync"])
    manager.tick()
    for log in manager.logs():
        with pytest.raises(StorageError):
            log.flush()
    manager.tick()
    assert not manager.has_directories
    assert manager.logs() == []
    with pytest.raises(StorageError, match="all log directories are offline"):
        manager.create_log("parcels", UUID(int=2), 0)
    manager.close()
    disk.fail(Path("/disks"), errno.EROFS)
    with pytest.raises(StorageError, match=r"/disks/a/data.*; .*/disks/b/data"):
        open_manager(disk)


def test_a_full_disk_refuses_appends_and_is_used_again() -> None:
    # The directory is not offline, because its records can be read and there may be space again.
    disk = SimulatedDisk()
    manager = open_manager(disk)
    fill(manager)
    log = manager.get("orders", 1)
    assert log is not None
    disk.fill(SECOND)
    with pytest.raises(StorageError, match="No space left"):
        log.append(batch())
    assert manager.failed_directories() == {}
    assert len(read_all(log)) == 20
    # New partitions go to the other directories, although these have more of them by now.
    created = [manager.create_log("parcels", UUID(int=2), partition) for partition in range(3)]
    assert {log.directory.parent for log in created} == {FIRST}
    disk.mend()
    log.append(batch(b"again"))
    assert len(read_all(log)) == 21


def test_a_directory_in_use_is_no_failing_disk() -> None:
    disk = SimulatedDisk()
    manager = open_manager(disk)
    with pytest.raises(EnvironmentProblemError, match="in use"):
        open_manager(disk)
    assert len(disk.locked) == 2
    manager.close()
    assert disk.locked == set()


def test_loading_in_several_threads_gives_the_same_and_counts() -> None:
    disk = SimulatedDisk()
    manager = open_manager(disk)
    fill(manager, 25)
    lost_power = disk.after_kill()
    seen: list[tuple[int, int, str]] = []
    again = LogManager.open(
        [FIRST, SECOND],
        broker_id=1,
        cluster_id="rivers",
        defaults=TopicConfig.load({"segment.bytes": 700}),
        files=lost_power,
        recovery_threads=4,
        on_progress=lambda *progress: seen.append(progress),
    )
    assert [(log.name, len(read_all(log))) for log in again.logs()] == [(log.name, 20) for log in manager.logs()]
    assert [(done, total) for done, total, _ in seen] == [(n, 25) for n in range(1, 26)]
    assert {name for _, _, name in seen} == {f"orders-{n}" for n in range(25)}
