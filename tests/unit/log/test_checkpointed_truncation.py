"""Tests of truncated logs and high watermarks across a broker's restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.errors import StorageError, UnknownTopicOrPartitionError
from millrace_broker.log import LogManager
from millrace_broker.log.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS

from .conftest import crash

Batch = Callable[..., bytes]
TOPIC_ID = UUID("52e46c13-8679-4c34-b236-e151f67f4bc9")


def test_high_watermarks_are_written_alone_and_again_after_a_failure(
    open_manager: Callable[..., LogManager], batch: Batch, disk: Any, tmp_path: Path
) -> None:
    manager = open_manager(files=disk)
    manager.create_log("orders", TOPIC_ID, 0).append(batch([1, 2]))
    path = tmp_path / "data" / HIGH_WATERMARKS
    disk.refuses_sync = True
    manager.checkpoint_watermarks()
    assert path.read_text() == "0\n0\n"
    disk.refuses_sync = False
    manager.checkpoint_watermarks()
    assert path.read_text() == "0\n1\norders 0 2\n"
    assert (tmp_path / "data" / RECOVERY_POINTS).read_text() == "0\n0\n"
    crash(manager)
    assert open_manager().checkpointed_watermark("orders", 0) == 2


def test_damaged_high_watermarks_are_ignored(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    manager = open_manager()
    manager.create_log("orders", TOPIC_ID, 0).append(batch([1, 2]))
    manager.close()
    (tmp_path / "data" / HIGH_WATERMARKS).write_text("0\n7\n")
    manager = open_manager(holds_watermarks=True)
    assert manager.checkpointed_watermark("orders", 0) == 0
    assert [(log.high_watermark, log.log_end_offset, log.is_led_here) for log in manager.logs()] == [(0, 2, False)]


def test_a_log_begins_again_durably(open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path) -> None:
    manager = open_manager()
    log = manager.create_log("orders", TOPIC_ID, 0)
    log.append(batch([1, 2, 3]))
    log.flush()
    manager.checkpoint()
    manager.begin_at("orders", 0, 100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert (tmp_path / "data" / HIGH_WATERMARKS).read_text() == "0\n1\norders 0 100\n"
    crash(manager)
    [again] = open_manager().logs()
    assert (again.log_start_offset, again.log_end_offset) == (100, 100)
    with pytest.raises(UnknownTopicOrPartitionError, match=r"partition orders-1 does not exist on this broker"):
        manager.begin_at("orders", 1, 100)


def test_recovery_points_are_on_the_disk_before_a_log_is_cut(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = open_manager()
    log = manager.create_log("orders", TOPIC_ID, 0)
    for number in range(5):
        log.append(batch([number]))
    log.flush()
    manager.checkpoint()
    seen: list[str] = []
    for name in ("truncate_to", "begin_at"):
        monkeypatch.setattr(log, name, lambda offset: seen.append((tmp_path / "data" / RECOVERY_POINTS).read_text()))
    assert manager.truncate({("orders", 0): 3}) == {}
    manager.begin_at("orders", 0, 100)
    assert seen == ["0\n1\norders 0 3\n", "0\n1\norders 0 0\n"]


def test_truncation_reports_the_partitions_that_failed(
    open_manager: Callable[..., LogManager], batch: Batch, disk: Any
) -> None:
    manager = open_manager("a", "b", "c", files=disk)
    logs = [manager.create_log("orders", TOPIC_ID, partition) for partition in range(3)]
    for log in logs:
        for number in range(3):
            log.append(batch([number]))
    disk.refuses_sync = True
    with pytest.raises(StorageError):
        logs[1].flush()
    disk.refuses_sync = False
    next(each for each in manager._directories if each.path.name == "c").fail(StorageError("gone"))
    failed = manager.truncate({("orders", partition): 2 for partition in range(4)})
    assert [log.log_end_offset for log in logs] == [2, 3, 3]
    assert sorted(failed) == [("orders", 1), ("orders", 2), ("orders", 3)]
    assert isinstance(failed["orders", 3], UnknownTopicOrPartitionError)
    assert failed["orders", 2].message == "gone"
    assert "accepts no appends because its disk failed" in failed["orders", 1].message


def test_a_partition_that_could_not_be_loaded_is_not_truncated(
    open_manager: Callable[..., LogManager], tmp_path: Path
) -> None:
    manager = open_manager()
    manager.create_log("orders", TOPIC_ID, 0)
    manager.close()
    (tmp_path / "data" / "orders-0" / "partition.metadata").unlink()
    assert list(open_manager().truncate({("orders", 0): 0})) == [("orders", 0)]
