"""A clock that tests set, batches, and partitions in a temporary directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import StorageError
from millrace.records import Record, build_rows_batch
from millrace_broker.log import OsFiles, PartitionLog
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
        if self._disk.refuses_truncate:
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
        self.refuses_sync = False

    def open(self, path: Path, *, create: bool = False) -> FailingFile:
        file = super().open(path, create=create)
        descriptor, file._descriptor = file._descriptor, -1
        return FailingFile(path, descriptor, self)


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
