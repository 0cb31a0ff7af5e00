"""A clock that tests set, batches, and partitions in a temporary directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import StorageError
from millrace.records import Record, build_rows_batch
from millrace_broker.log import LogManager, OsFiles, PartitionLog
from millrace_broker.log.files import OsFile, Part


class ManualClock:
    """A clock that stands still until a test advances it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 1000.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance_ms(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
        self._monotonic += milliseconds / 1000


class FailingFile(OsFile):
    """A file on a disk with limited space that fails on demand."""

    def __init__(self, path: Path, descriptor: int, disk: FailingFiles) -> None:
        super().__init__(path, descriptor)
        self._disk = disk

    def write(self, position: int, parts: Sequence[Part]) -> None:
        whole = b"".join(bytes(part) for part in parts)
        if len(whole) > self._disk.bytes_left:
            super().write(position, [whole[: self._disk.bytes_left]])
            raise StorageError("no space left")
        self._disk.bytes_left -= len(whole)
        super().write(position, parts)

    def truncate(self, size_bytes: int) -> None:
        if self._disk.refuses_truncate and self._path.name.endswith(self._disk.refused_suffix):
            raise StorageError("input/output error")
        super().truncate(size_bytes)

    def sync(self) -> None:
        if self._disk.refuses_sync:
            raise StorageError("input/output error")
        super().sync()


class FailingFiles(OsFiles):
    """A disk that can be full or broken."""

    def __init__(self) -> None:
        self.bytes_left = 2**40
        self.refuses_truncate = False
        self.refused_suffix = ""
        """Truncation fails only for names that end with it."""
        self.refuses_sync = False
        self.refuses_open = False
        self.refuses_remove = False
        self.removals: list[str] = []
        """The names of removed files, with "sync" for each sync of a directory."""

    def remove(self, path: Path) -> None:
        if self.refuses_remove:
            raise StorageError("input/output error")
        super().remove(path)
        self.removals.append(path.name)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.removals.append("sync")

    def open(self, path: Path, *, create: bool = False) -> FailingFile:
        if self.refuses_open:
            raise StorageError("input/output error")
        file = super().open(path, create=create)
        descriptor, file._descriptor = file._descriptor, -1
        return FailingFile(path, descriptor, self)


class RefusingFiles(OsFiles):
    """Files whose operations fail as a test decides."""

    def __init__(self) -> None:
        self.refuses: Callable[[str, Path], int] = lambda operation, path: 0
        """Return the ``errno`` with which an operation fails, or 0."""

    def _check(self, operation: str, path: Path) -> None:
        if number := self.refuses(operation, path):
            raise StorageError(f"{path}: {os.strerror(number)}") from OSError(number, os.strerror(number))

    def make_directory(self, path: Path) -> None:
        self._check("make_directory", path)
        super().make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._check("rename", source)
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self._check("sync_directory", path)
        super().sync_directory(path)

    def names(self, directory: Path) -> list[str]:
        self._check("names", directory)
        return super().names(directory)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> FailingFiles:
    return FailingFiles()


@pytest.fixture
def open_log(tmp_path: Path, clock: ManualClock) -> Callable[..., PartitionLog]:
    """Open the partition in ``tmp_path`` with topic options, given by their dotted names."""

    def _open(options: dict[str, Any] | None = None, **arguments: Any) -> PartitionLog:
        return PartitionLog(
            topic="orders",
            topic_id=UUID(int=1),
            partition=3,
            config=TopicConfig.load(options or {}),
            clock=clock,
            **({"files": OsFiles(), "directory": tmp_path} | arguments),
        )

    return _open


@pytest.fixture
def batch() -> Callable[..., bytes]:
    """Build a batch of rows from timestamps; each value is 20 bytes."""

    def _batch(timestamps_ms: Sequence[int] = (1_700_000_000_000,), **arguments: Any) -> bytes:
        records = [Record(key=None, value=b"v" * 20, timestamp_ms=time_ms) for time_ms in timestamps_ms]
        return build_rows_batch(records, **arguments)

    return _batch


@pytest.fixture
def open_manager(tmp_path: Path, clock: Any) -> Iterator[Callable[..., LogManager]]:
    opened: list[LogManager] = []

    def _open(*names: str, options: dict[str, Any] | None = None, **arguments: Any) -> LogManager:
        manager = LogManager.open(
            [tmp_path / name for name in names or ("data",)],
            defaults=TopicConfig.load(options or {}),
            clock=clock,
            **({"broker_id": 1, "cluster_id": "rivers"} | arguments),
        )
        opened.append(manager)
        return manager

    yield _open
    for manager in opened:
        manager.close()


def crash(manager: LogManager) -> None:
    """Leave all files as a killed process does."""
    for log in manager.logs():
        log.release()
    for directory in manager._directories:
        directory.release()
    manager._is_closed = True
