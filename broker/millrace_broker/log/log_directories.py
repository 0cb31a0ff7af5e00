"""The log directories of a broker, Kafka's ``LogDirFailureHandler``.

A directory fails as a whole, at start or later, when its disk fails (``watched_files``). The broker does not touch it
again until its next start, because the content is unknown and writes may never have arrived. The other directories
continue to work. Without any directory the broker stops.

It is unknown which partitions a directory holds that failed at start. While there is one, no partition is created that
may exist there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from millrace.errors import MillraceError, StorageError
from millrace.segments.names import deleted_directory_name, partition_directory_name
from millrace_broker.log.checkpoints import PartitionKey
from millrace_broker.log.data_directory import DataDirectory
from millrace_broker.log.files import Files
from millrace_broker.log.partition_metadata import write_topic_id
from millrace_broker.log.watched_files import WatchedFiles, is_fault, is_full

_LOG: Final = logging.getLogger(__name__)

PREFERRED_MAX: Final = 1000
"""Partitions that are not here yet and whose directory was chosen. Any client may name some."""


class LogDirectories:
    """The opened directories, in the order of ``log.dirs``. All access to them must go through ``files``."""

    def __init__(self, files: Files) -> None:
        self.files: Final[Files] = WatchedFiles(files, self._on_fault)
        self._preferred: Final[dict[PartitionKey, DataDirectory]] = {}
        self._opened: list[DataDirectory] = []
        self._failed_at_start: dict[Path, MillraceError] = {}
        self._retired: set[Path] = set()

    def open(self, paths: Sequence[Path], *, broker_id: int, cluster_id: str) -> None:
        """Lock the directories. A directory whose disk fails is offline.

        Raises ``EnvironmentProblemError`` when one is in use or not this broker's, and ``StorageError`` when all fail.
        """
        for path in paths:
            try:
                directory = DataDirectory.open(path, broker_id=broker_id, cluster_id=cluster_id, files=self.files)
            except StorageError as error:
                _LOG.error("log directory %s is offline: %s", path, error.message)
                self._failed_at_start[path] = error
            else:
                self._opened.append(directory)
        if not self._opened:
            raise StorageError("; ".join(error.message for error in self._failed_at_start.values()))

    def __iter__(self) -> Iterator[DataDirectory]:
        """Iterate over the directories that work."""
        return iter([directory for directory in self._opened if directory.failure is None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def failures(self) -> dict[Path, MillraceError]:
        """Return the directories that have failed, with the errors."""
        failed = {directory.path: directory.failure for directory in self._opened if directory.failure is not None}
        return self._failed_at_start | failed

    def _on_fault(self, path: Path, error: StorageError) -> None:
        for directory in self._opened:
            if path.is_relative_to(directory.path):
                directory.fail(error)

    def prefer(self, partition: PartitionKey, directory: DataDirectory) -> None:
        """Let a partition be placed in a directory when it comes. The oldest of too many wishes is forgotten."""
        self._preferred.pop(partition, None)
        self._preferred[partition] = directory
        if len(self._preferred) > PREFERRED_MAX:
            del self._preferred[next(iter(self._preferred))]

    def place(
        self, homes: Iterable[DataDirectory], topic: str, topic_id: UUID, partition: int
    ) -> tuple[DataDirectory, Path]:
        """Create a partition's directory in the preferred log directory, that with the fewest partitions, or the next.

        The next one is used if a directory is full or fails. ``homes`` names the directory of each existing partition.
        Of equal directories the first one of ``log.dirs`` is used. Raises ``StorageError`` when none accepts it.
        """
        counts = Counter(id(home) for home in homes)
        problem = StorageError("all log directories are offline: repair one and start the broker again")
        preferred = self._preferred.pop((topic, partition), None)
        for directory in sorted(self, key=lambda each: (each is not preferred, counts[id(each)])):
            try:
                return directory, self._make(directory, topic, topic_id, partition)
            except StorageError as error:
                if not (is_full(error) or is_fault(error)):
                    raise
                problem = error
        raise problem

    def _make(self, directory: DataDirectory, topic: str, topic_id: UUID, partition: int) -> Path:
        unfinished = directory.path / deleted_directory_name(topic, partition, uuid4().hex)
        path = directory.path / partition_directory_name(topic, partition)
        self.files.make_directory(unfinished)
        write_topic_id(self.files, unfinished, topic_id)
        self.files.rename(unfinished, path)
        self.files.sync_directory(directory.path)
        return path

    def take_failed(self) -> list[DataDirectory]:
        """Return the directories that have failed since the last call."""
        failed = [each for each in self._opened if each.failure is not None and each.path not in self._retired]
        self._retired |= {directory.path for directory in failed}
        return failed

    def release(self) -> None:
        """Unlock all directories."""
        for directory in self._opened:
            directory.release()
