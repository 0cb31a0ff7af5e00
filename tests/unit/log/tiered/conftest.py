"""A tiered partition, and a remote store that fails on demand.

The store is a directory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import RemoteStorageError
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.files import Part
from millrace_broker.log.remote_log_manager import RemoteLogManager
from millrace_broker.log.tiered.deletions import RemoteDeletions
from millrace_broker.log.tiered.settings import TieringSettings
from millrace_broker.log.tiered.store import ArrowStore, RemoteFile, RemoteObject

TIERED = {"remote.storage.enable": "true", "file.delete.delay.ms": "0", "retention.ms": "-1"}
NOW_MS = 1_700_000_000_000


class Killed(BaseException):
    """The end of the process at this moment."""


class FailingStore(ArrowStore):
    """A store that fails at one call, or always.

    The store fails at the call with the index ``fails_at`` in ``calls``, and at each call while ``is_away``. At the
    call ``kills_at`` the process is killed.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory.as_uri())
        self.calls: list[str] = []
        self.fails_at: int | None = None
        self.kills_at: int | None = None
        self.is_away = False

    def _call(self, what: str, tears: Callable[[], None] = lambda: None) -> None:
        self.calls.append(what)
        number = len(self.calls) - 1
        if self.is_away or number == self.fails_at:
            tears()
            raise RemoteStorageError("the store is away")
        if number == self.kills_at:
            tears()
            raise Killed

    def list(self, folder: str) -> list[RemoteObject]:
        self._call("list")
        return super().list(folder)

    def open(self, folder: str, name: str) -> RemoteFile | None:
        self._call(f"open {name}")
        return super().open(folder, name)

    def write(self, folder: str, name: str, parts: Iterable[Part]) -> None:
        data = b"".join(bytes(part) for part in parts)
        if not name.endswith(".unfinished"):  # that file belongs to the publication
            self._call(f"write {name}", lambda: super(FailingStore, self).write(folder, name, [data[: len(data) // 2]]))
        super().write(folder, name, [data])

    def publish(self, folder: str, name: str, data: bytes) -> None:
        torn = name + ".unfinished"
        self._call(f"publish {name}", lambda: super(FailingStore, self).write(folder, torn, [data[:10]]))
        super().publish(folder, name, data)

    def remove(self, folder: str, name: str) -> None:
        self._call(f"remove {name}")
        super().remove(folder, name)

    def remove_folder(self, folder: str) -> None:
        self._call("remove folder")
        super().remove_folder(folder)


@pytest.fixture
def remote_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remote")


@pytest.fixture
def store(remote_directory: Path) -> FailingStore:
    return FailingStore(remote_directory)


@pytest.fixture
def make_manager(tmp_path: Path, store: FailingStore, clock: Any) -> Callable[..., RemoteLogManager]:
    def _make(**settings: Any) -> RemoteLogManager:
        return RemoteLogManager(
            TieringSettings(**settings),
            store,
            RemoteDeletions(OsFiles(), tmp_path),
            OsFiles(),
            clock,
            write_start=lambda log: None,
            randomness=random.Random(1),
        )

    return _make


@pytest.fixture
def manager(make_manager: Callable[..., RemoteLogManager]) -> RemoteLogManager:
    """Create a manager without threads. Tests call ``work_once``."""
    return make_manager()


@pytest.fixture
def tiered_log(
    tmp_path: Path, clock: Any, manager: RemoteLogManager, batch: Callable[..., bytes]
) -> Callable[..., PartitionLog]:
    """Create a tiered partition of so many sealed segments and an active one.

    Each segment has two batches of three records.
    """

    def _make(segments: int = 3, *, is_attached: bool = True, **options: str) -> PartitionLog:
        log = PartitionLog(
            topic="orders",
            topic_id=UUID(int=1),
            partition=3,
            directory=tmp_path / "orders-3",
            config=TopicConfig.load(TIERED | {name.replace("_", "."): value for name, value in options.items()}),
            files=OsFiles(),
            clock=clock,
        )
        for number in range(segments + 1):
            for _ in range(2):
                log.append(batch([NOW_MS + number * 1000 + n for n in range(3)]))
            if number < segments:
                log.roll()
        log.flush()
        if is_attached:
            manager.attach(log)
        return log

    (tmp_path / "orders-3").mkdir()
    return _make


@pytest.fixture
def settle(clock: Any) -> Callable[[RemoteLogManager], None]:
    """Let a manager do all pending work, now and after its longest backoff."""

    def _settle(manager: RemoteLogManager) -> None:
        clock.advance_ms(60_000)
        while manager.work_once():
            pass

    return _settle
