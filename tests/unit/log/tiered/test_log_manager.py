"""Tests of tiering in the log manager.

The configuration turns tiering on, and it resumes after a stop or a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from millrace.config.topic import TopicConfig
from millrace.errors import StorageError
from millrace.records import scan_headers
from millrace_broker.log import Files, LogManager, PartitionLog
from millrace_broker.log.tiered.settings import TieringSettings

from ....integration.waiting import eventually

TIERED = TopicConfig.load(
    {
        "remote.storage.enable": "true",
        "local.retention.bytes": "1",
        "retention.ms": "-1",
        "segment.bytes": "300",
        "file.delete.delay.ms": "0",
    }
)
SETTINGS = TieringSettings(threads=2, interval_ms=1, backoff_max_ms=1)


def open_manager(directory: Path, store: Any, clock: Any, files: Files | None = None) -> LogManager:
    manager = LogManager.open(
        [directory],
        broker_id=0,
        cluster_id="cluster",
        defaults=TopicConfig.load({}),
        clock=clock,
        configs={"orders": TIERED},
        retention_check_interval_ms=1,
        files=files,
    )
    manager.start_tiering(SETTINGS, store)
    return manager


def fill(log: PartitionLog, batch: Callable[..., bytes], count: int) -> None:
    for _ in range(count):
        log.append(batch([1_700_000_000_000]))
    log.flush()


def tier(manager: LogManager, log: PartitionLog, clock: Any) -> None:
    """Advance the time until only one segment is on the disk."""

    def passes() -> bool:
        clock.advance_ms(100)
        manager.tick()
        return len(log.segments) == 1

    eventually(passes)


def offsets_of(log: PartitionLog) -> list[int]:
    offset, offsets = log.log_start_offset, []
    while offset < log.high_watermark:
        for _, header in scan_headers(log.read(offset, 10_000)):
            offsets += range(header.base_offset, header.next_offset)
            offset = header.next_offset
    return offsets


def attached(log: PartitionLog | None) -> PartitionLog:
    assert log is not None
    eventually(lambda: log.remote is not None and log.remote.is_loaded)
    return log


def test_a_tiered_log_starts_where_it_did_after_a_crash_and_after_a_stop(
    tmp_path: Path, store: Any, clock: Any, batch: Callable[..., bytes]
) -> None:
    manager = open_manager(tmp_path / "data", store, clock)
    log = manager.create_log("orders", UUID(int=1), 0, TIERED)
    fill(log, batch, 20)
    tier(manager, log, clock)
    assert log.first_base_offset > 0
    # A crash writes nothing more; only the process' locks are released.
    assert manager.tiering is not None
    manager.tiering.stop()
    for directory in manager._directories:
        directory.release()

    manager = open_manager(tmp_path / "data", store, clock)
    log = attached(manager.get("orders", 0))
    assert log.log_start_offset == 0
    assert offsets_of(log) == list(range(20))
    fill(log, batch, 5)
    manager.close()

    manager = open_manager(tmp_path / "data", store, clock)
    log = attached(manager.get("orders", 0))
    assert offsets_of(log) == list(range(25))
    manager.delete_records("orders", 0, 7)
    manager.close()

    manager = open_manager(tmp_path / "data", store, clock)
    assert attached(manager.get("orders", 0)).log_start_offset == 7
    manager.close()


def test_a_store_that_is_away_keeps_no_broker_from_starting(
    tmp_path: Path, store: Any, clock: Any, batch: Callable[..., bytes]
) -> None:
    manager = open_manager(tmp_path / "data", store, clock)
    log = manager.create_log("orders", UUID(int=1), 0, TIERED)
    fill(log, batch, 20)
    tier(manager, log, clock)
    manager.close()
    store.is_away = True
    manager = open_manager(tmp_path / "data", store, clock)
    found = manager.get("orders", 0)
    assert found is not None
    assert found.log_start_offset == 0
    fill(found, batch, 20)
    store.is_away = False

    def passes() -> bool:
        clock.advance_ms(100)
        return found.remote is not None and found.remote.is_loaded

    eventually(passes)
    assert offsets_of(found) == list(range(40))
    manager.close()


def test_a_deleted_topic_leaves_nothing(
    tmp_path: Path, store: Any, clock: Any, batch: Callable[..., bytes], remote_directory: Path
) -> None:
    manager = open_manager(tmp_path / "data", store, clock)
    log = manager.create_log("orders", UUID(int=1), 0, TIERED)
    fill(log, batch, 20)
    tier(manager, log, clock)
    manager.delete_log("orders", 0)

    def passes() -> bool:
        clock.advance_ms(100)
        return list(remote_directory.iterdir()) == []

    eventually(passes)
    assert manager.tiering is not None
    assert manager.tiering.statistics().partitions == {}
    manager.close()


def test_only_logs_of_tiered_topics_are_copied_and_a_new_configuration_counts_at_once(
    tmp_path: Path, store: Any, clock: Any, batch: Callable[..., bytes]
) -> None:
    manager = open_manager(tmp_path / "data", store, clock)
    plain = TopicConfig.load({"segment.bytes": "300", "file.delete.delay.ms": "0"})
    logs = [manager.create_log(topic, UUID(int=n), 0, plain) for n, topic in enumerate(("parcels", "letters"), 1)]
    tiered = manager.create_log("orders", UUID(int=3), 0, TIERED)
    attached(tiered)
    assert [log.remote for log in logs] == [None, None]
    assert not any(log.is_remote(0) for log in [*logs, tiered])
    manager.set_config("parcels", TIERED)
    attached(logs[0])
    assert logs[1].remote is None
    fill(logs[0], batch, 10)
    tier(manager, logs[0], clock)
    fill(logs[0], batch, 10)
    first = logs[0].first_base_offset
    assert len(logs[0].segments) > 1
    assert [logs[0].is_remote(offset) for offset in (0, first - 1, first, first + 1)] == [True, True, False, False]
    manager.close()


def test_local_segments_stay_until_the_start_of_their_log_is_written(
    tmp_path: Path, store: Any, clock: Any, batch: Callable[..., bytes], disk: Any
) -> None:
    manager = open_manager(tmp_path / "data", store, clock, disk)
    log = attached(manager.create_log("orders", UUID(int=1), 0, TIERED))
    fill(log, batch, 20)
    bases = [segment.base_offset for segment in log.segments]

    def is_copied() -> bool:
        clock.advance_ms(100)
        return log.remote is not None and log.remote.end_offset == bases[-1]

    eventually(is_copied)
    disk.refuses_sync = True
    manager.tick()
    assert [segment.base_offset for segment in log.segments] == bases
    disk.refuses_sync = False
    tier(manager, log, clock)
    assert log.log_start_offset == 0
    manager.close()


def test_logs_of_a_failed_directory_are_not_copied(
    tmp_path: Path, store: Any, clock: Any, batch: Callable[..., bytes]
) -> None:
    manager = open_manager(tmp_path / "data", store, clock)
    attached(manager.create_log("orders", UUID(int=1), 0, TIERED))
    assert manager.tiering is not None
    assert len(manager.tiering.statistics().partitions) == 1
    next(iter(manager._directories)).fail(StorageError("gone"))
    manager.tick()
    assert manager.tiering.statistics().partitions == {}
    manager.close()
