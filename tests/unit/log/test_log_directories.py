"""Tests of log directories with faults.

The directories are full, break, or contain unexpected files.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.errors import EnvironmentProblemError, StorageError
from millrace_broker.log import LogManager
from millrace_broker.log.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from millrace_broker.log.data_directory import make_directory
from millrace_broker.log.periodic_work import check_directories

from .conftest import RefusingFiles

Batch = Callable[..., bytes]
TOPIC_ID = UUID("52e46c13-8679-4c34-b236-e151f67f4bc9")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_or_broken_directory_is_skipped_by_a_new_partition(
    open_manager: Callable[..., LogManager], tmp_path: Path, number: int
) -> None:
    files = RefusingFiles()
    manager = open_manager("a", "b", files=files)
    files.refuses = lambda operation, path: number * (operation == "make_directory" and tmp_path / "a" in path.parents)
    assert manager.create_log("orders", TOPIC_ID, 0).directory.parent == tmp_path / "b"
    assert list(manager.failed_directories()) == ([tmp_path / "a"] if number == errno.EIO else [])
    files.refuses = lambda operation, path: number * (operation == "make_directory")
    with pytest.raises(StorageError, match=os.strerror(number)):
        manager.create_log("orders", TOPIC_ID, 1)
    assert manager.get("orders", 1) is None


def test_another_failure_to_create_a_partition_is_reported(
    open_manager: Callable[..., LogManager], tmp_path: Path
) -> None:
    files = RefusingFiles()
    manager = open_manager("a", "b", files=files)
    files.refuses = lambda operation, path: errno.EACCES * (operation == "make_directory" and "/a/" in str(path))
    with pytest.raises(StorageError, match="Permission denied"):
        manager.create_log("orders", TOPIC_ID, 0)
    assert manager.failed_directories() == {}


def test_a_directory_whose_disk_breaks_is_offline_and_the_others_serve(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    files = RefusingFiles()
    manager = open_manager("a", "b", files=files)
    for partition in range(2):
        manager.create_log("orders", TOPIC_ID, partition).append(batch([1]))
    manager.checkpoint()
    check_directories(manager, tmp_path / "a")
    files.refuses = lambda operation, path: errno.EIO * path.is_relative_to(tmp_path / "a")
    with pytest.raises(StorageError):
        manager.delete_records("orders", 0, 1)
    assert list(manager.failed_directories()) == [tmp_path / "a"]
    assert list(manager.offline()) == [("orders", 0)]
    with pytest.raises(StorageError, match=r"orders-0 is offline: .*Input/output error"):
        manager.get("orders", 0)
    with pytest.raises(StorageError, match=r"orders-2 may be in a log directory that is offline .*/a"):
        manager.create_log("orders", TOPIC_ID, 2, is_new=False)
    assert manager.create_log("orders", TOPIC_ID, 2).directory.parent == tmp_path / "b"
    assert [log.partition for log in manager.logs()] == [1, 2]
    check_directories(manager, tmp_path / "b")
    check_directories(manager, None)
    with pytest.raises(StorageError, match=r"the log directory with the metadata has failed: .*Input/output error"):
        check_directories(manager, tmp_path / "a")
    manager.tick()
    files.refuses = lambda operation, path: errno.EIO * (operation == "make_directory")
    with pytest.raises(StorageError):
        manager.create_log("orders", TOPIC_ID, 3)
    with pytest.raises(StorageError, match=r"all log directories have failed: .*Input/output error.*; .*Input/output"):
        check_directories(manager, None)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_directory_that_cannot_be_listed_at_start_is_offline_and_its_lock_is_free(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path, number: int
) -> None:
    # The first listing finds leftovers, the second one moves, and the third one partitions.
    manager = open_manager("a", "b")
    for partition in range(2):
        manager.create_log("orders", TOPIC_ID, partition).append(batch([1]))
    manager.close()
    files, asked = RefusingFiles(), []

    def refuses(operation: str, path: Path) -> int:
        asked.append((operation, path))
        return errno.EACCES * (asked[-1] == ("names", tmp_path / "a") and asked.count(asked[-1]) == number)

    files.refuses = refuses
    broken = open_manager("a", "b", files=files)
    assert list(broken.failed_directories()) == [tmp_path / "a"]
    assert [log.partition for log in broken.logs()] == [1]
    assert [log.partition for log in open_manager("a").logs()] == [0]


def test_a_partition_in_two_directories_is_offline(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    manager = open_manager("a", "b")
    manager.create_log("orders", TOPIC_ID, 0).append(batch([1]))
    manager.close()
    shutil.copytree(tmp_path / "a" / "orders-0", tmp_path / "b" / "orders-0")
    manager = open_manager("a", "b")
    with pytest.raises(StorageError, match=r"is a second copy of orders-0, beside .*: remove one"):
        manager.get("orders", 0)


def test_leftovers_of_an_interrupted_replacement_are_removed(
    open_manager: Callable[..., LogManager], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "no-checkpoint.tmp").write_text("half")
    open_manager()
    assert not list((tmp_path / "data").glob("*.tmp"))


def test_a_partition_that_cannot_be_closed_is_recovered_by_the_next_start(
    open_manager: Callable[..., LogManager], batch: Batch, disk: Any, tmp_path: Path
) -> None:
    manager = open_manager("a", "b", files=disk)
    for partition in range(2):
        manager.create_log("orders", TOPIC_ID, partition).append(batch([1]))
    disk.refuses_sync = True
    with pytest.raises(StorageError):
        manager.get("orders", 0).flush()  # type: ignore[union-attr]
    disk.refuses_sync = False
    manager.close()
    assert [(tmp_path / name / ".kafka_cleanshutdown").exists() for name in "ab"] == [False, True]


def test_a_log_directory_that_cannot_be_made_or_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_directory(tmp_path / "new" / "data")
    make_directory(tmp_path / "new" / "data")
    assert (tmp_path / "new" / "data").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblemError, match=r"cannot create .*/file/data: Not a directory"):
        make_directory(tmp_path / "file" / "data")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(EnvironmentProblemError, match=r"/new is not writable for this user"):
        make_directory(tmp_path / "new")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("version: 1\ntopic_id: UuRsE4Z5TDSyNuFR9n9LyQ\n", "version 1"),
        ("version: 0\ntopic_id: UuRsE4Z5TDSyNuFR9n9LyQ: 1\n", "'UuRsE4Z5TDSyNuFR9n9LyQ: 1' is no topic id"),
        ("version: 0\n", "topic_id"),
        ("", "version"),
    ],
)
def test_damaged_topic_ids_are_named(
    open_manager: Callable[..., LogManager], tmp_path: Path, text: str, problem: str
) -> None:
    manager = open_manager()
    manager.create_log("orders", TOPIC_ID, 0)
    manager.close()
    (tmp_path / "data" / "orders-0" / "partition.metadata").write_text(text)
    manager, damaged = open_manager(), rf"partition\.metadata is damaged \(.*{problem}.*\): restore it from a copy"
    with pytest.raises(StorageError, match=damaged):
        manager.get("orders", 0)
    assert re.search(damaged, manager.truncate({("orders", 0): 0})[("orders", 0)].message)


def test_checkpoints_of_a_partition_that_cannot_be_loaded_stay(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    manager = open_manager()
    for partition in range(2):
        manager.create_log("orders", TOPIC_ID, partition).append(batch([1, 2, 3]))
        manager.delete_records("orders", partition, 2 - partition)
    manager.close()
    names = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS)
    before = [(tmp_path / "data" / name).read_text() for name in names]
    metadata = tmp_path / "data" / "orders-0" / "partition.metadata"
    content = metadata.read_text()
    metadata.unlink()
    for _ in range(2):
        manager = open_manager()
        manager.checkpoint_watermarks()
        manager.close()
        assert [(tmp_path / "data" / name).read_text() for name in names] == before
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    metadata.write_text(content)
    assert [(log.log_start_offset, log.log_end_offset) for log in open_manager().logs()] == [(2, 3), (1, 3)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("broker.id=1\ncluster.id=rivers\n", None),
        ("#\n\nversion = 1\n broker.id = 1 \n", None),
        ("version=1\nnode.id=1\ncluster.id=rivers\n", None),
        ("version=1\nnode.id=2\ncluster.id=rivers\n", r"belongs to broker 2 \(meta.properties\), but this is broker 1"),
        ("cluster.id=rivers\n", "belongs to broker None"),
        ("broker.id=1\ncluster.id=lakes\n", "belongs to cluster lakes"),
    ],
)
def test_the_owner_of_a_directory_is_read_as_kafka_writes_it(
    open_manager: Callable[..., LogManager], tmp_path: Path, text: str, problem: str | None
) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "meta.properties"
    path.write_text(text)
    if problem is None:
        open_manager()
        assert path.read_text() == text
    else:
        with pytest.raises(EnvironmentProblemError, match=problem):
            open_manager()
