"""Moves of partitions between log directories, Kafka's ``ReplicaAlterLogDirsManager`` (KIP-113).

A thread copies a log into ``<target>/<topic>-<partition>.<unique>-future``, while the log is used. At the end the
thread stops the appends for a moment, and:

1. copies the rest of the last segment, syncs the copy, and writes the checkpoints of the target directory with the
   partition;
2. renames the copy to ``...-moved``. From here on a start completes the next steps;
3. renames the old directory to ``...-delete``, and the copy to ``<topic>-<partition>``.

Invariants:

- At most one copy of a partition is in progress. A start removes an unfinished copy and begins it again.
- The partition's ``PartitionLog`` stays the same object, so its readers and its replica need no notification.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from millrace.errors import LogDirNotFoundError, MillraceError, ReplicaNotAvailableError, StorageError
from millrace.segments.names import (
    FUTURE_DIRECTORY,
    MOVED_DIRECTORY,
    deleted_directory_name,
    directory_name_under_way,
    parse_directory_name_under_way,
    partition_directory_name,
)
from millrace_broker.log.background_work import BackgroundWork
from millrace_broker.log.checkpoint_writer import CheckpointWriter
from millrace_broker.log.checkpoints import PartitionKey
from millrace_broker.log.data_directory import DataDirectory
from millrace_broker.log.deleted_files import DeletedFiles
from millrace_broker.log.files import Files
from millrace_broker.log.future_log import FutureLog
from millrace_broker.log.hosted_logs import HostedLogs
from millrace_broker.log.log_directories import LogDirectories
from millrace_broker.log.partition_log import PartitionLog
from millrace_broker.log.partition_metadata import write_topic_id
from millrace_broker.log.throttle import Throttle
from millrace_broker.log.workers import Workers
from millrace_broker.runtime import Clock

_LOG: Final = logging.getLogger(__name__)
_COPY_BYTES: Final = 2**20
_NO_WORK_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class FutureReplica:
    """A copy in progress, as DescribeLogDirs reports it.

    ``offset_lag`` is the number of offsets by which the copy is behind its log.
    """

    size_bytes: int
    offset_lag: int


class DirectoryMoves:
    """The moves in progress, and their threads, one for each log directory."""

    def __init__(
        self,
        directories: LogDirectories,
        hosted: HostedLogs,
        checkpoints: CheckpointWriter,
        deleted: DeletedFiles,
        background: BackgroundWork,
        clock: Clock,
    ) -> None:
        self._directories: Final = directories
        self._files: Final[Files] = directories.files
        self._hosted: Final = hosted
        self._checkpoints: Final = checkpoints
        self._deleted: Final = deleted
        self._clock: Final = clock
        self._background: Final = background
        self._workers: Final[Workers[PartitionKey]] = Workers("log-directory-moves", max(1, len(directories)))
        self._targets: Final[dict[PartitionKey, DataDirectory]] = {}
        self._futures: Final[dict[PartitionKey, FutureLog]] = {}
        self._unfinished: list[tuple[PartitionKey, DataDirectory]] = []
        self._is_started = False
        self._throttle = self._throttle_of(math.inf)

    def _throttle_of(self, bytes_per_second: float) -> Throttle:
        return Throttle(bytes_per_second, self._clock.monotonic, self._workers.wait)

    def set_rate(self, bytes_per_second: float) -> None:
        """Limit the bytes that are copied in a second (``replica.alter.log.dirs.io.max.bytes.per.second``)."""
        with self._workers.changed:
            if bytes_per_second != self._throttle.bytes_per_second:
                self._throttle = self._throttle_of(bytes_per_second)
                self._workers.changed.notify_all()  # a copy may have to wait very long at the earlier rate

    # --- requests ------------------------------------------------------------------------------------------

    def request(self, key: PartitionKey, path: Path) -> None:
        """Move a partition to the log directory ``path``, or cancel its move if it is there.

        A partition that does not exist on this broker yet will be created in that directory.

        Raises ``LogDirNotFoundError``, and ``StorageError`` when the directory or the partition is offline. Raises
        ``InvalidTopicError`` when the topic's name is too long, and ``ReplicaNotAvailableError`` when the partition is
        not on this broker.
        """
        if path in self._directories.failures():
            raise StorageError(f"log directory {path} is offline: repair it and start the broker again")
        target = next((each for each in self._directories if each.path == path), None)
        if target is None:
            known = ", ".join(str(each.path) for each in self._directories)
            raise LogDirNotFoundError(f"this broker has no log directory {path}: it has {known}")
        name = partition_directory_name(*key)
        if (problem := self._hosted.offline().get(key)) is not None:
            raise StorageError(f"{name} is offline: {problem.message}")
        if key not in self._hosted.logs:
            with self._hosted.lock:
                self._directories.prefer(key, target)
            raise ReplicaNotAvailableError(f"{name} is not on this broker: if it comes, it will be put in {path}")
        directory_name_under_way(*key, uuid4().hex, FUTURE_DIRECTORY)  # raises if the name would be too long
        if self._hosted.homes[key] is target:
            self.cancel(key)
        else:
            self._begin(key, target)

    def _begin(self, key: PartitionKey, target: DataDirectory) -> None:
        if self._targets.get(key) is target:
            return
        self.cancel(key)
        with self._workers.changed:
            self._targets[key] = target
            if not self._is_started:
                self._is_started = True
                self._workers.start(self._run)
            self._workers.changed.notify_all()

    def cancel(self, key: PartitionKey) -> None:
        """End a partition's move, and remove its copy.

        Call this without holding a lock, because a move may need the lock to end.
        """
        with self._workers.changed:
            self._targets.pop(key, None)
        with self._workers.paused(key):
            pass

    def stop(self) -> None:
        """Stop the threads. Unfinished copies stay on the disk, so that the next start begins them again."""
        self._workers.stop()

    def in_progress(self, path: Path) -> Mapping[PartitionKey, FutureReplica]:
        """Return the copies in a log directory."""
        found = {}
        for key, future in list(self._futures.items()):
            log = self._hosted.logs.get(key)
            if log is not None and future.directory.parent == path:
                lag = max(0, log.log_end_offset - future.end_offset)
                found[key] = FutureReplica(future.size_bytes, lag)
        return found

    # --- start ---------------------------------------------------------------------------------------------

    def complete_decided(self) -> None:
        """Complete the moves whose copy an earlier process had renamed to ``-moved``, and remove unfinished copies.

        Call this before partitions are loaded. A directory whose disk fails is taken offline.
        """
        for directory in self._directories:
            try:
                for name in self._files.names(directory.path):
                    parsed = parse_directory_name_under_way(name)
                    if parsed is None:
                        continue
                    topic, partition, suffix = parsed
                    if suffix == MOVED_DIRECTORY:
                        self._complete((topic, partition), directory, name)
                    else:
                        self._files.remove_tree(directory.path / name)
                        self._unfinished.append(((topic, partition), directory))
            except StorageError as error:
                directory.fail(error)

    def _complete(self, key: PartitionKey, target: DataDirectory, name: str) -> None:
        final = partition_directory_name(*key)
        for directory in self._directories:
            if directory is not target and self._files.is_directory(directory.path / final):
                gone = directory.path / deleted_directory_name(*key, uuid4().hex)
                self._files.rename(directory.path / final, gone)
                self._files.sync_directory(directory.path)
                directory.forget(key)
        self._files.rename(target.path / name, target.path / final)
        self._files.sync_directory(target.path)
        _LOG.info("completed the move of %s to %s", final, target.path)

    def resume(self) -> None:
        """Begin the moves again that the last process did not finish."""
        for key, directory in self._unfinished:
            if key in self._hosted.logs and directory.failure is None:
                self._begin(key, directory)
        self._unfinished = []

    # --- threads -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._workers.is_stopping:
            taken = self._take()
            if taken is None:
                self._workers.wait(_NO_WORK_S)
                continue
            key, target = taken
            try:
                self._move(key, target)
            except MillraceError as error:
                _LOG.error("%s was not moved to %s: %s", partition_directory_name(*key), target.path, error.message)
                self._finished(key, target)
            finally:
                self._workers.done(key)

    def _take(self) -> tuple[PartitionKey, DataDirectory] | None:
        with self._workers.changed:
            for key, target in self._targets.items():
                if self._workers.take(key):
                    return key, target
        return None

    def _finished(self, key: PartitionKey, target: DataDirectory) -> None:
        with self._workers.changed:
            if self._targets.get(key) is target:
                del self._targets[key]

    def _move(self, key: PartitionKey, target: DataDirectory) -> None:
        log = self._hosted.logs.get(key)
        if log is None or self._hosted.homes[key] is target:
            self._finished(key, target)
            return
        name = directory_name_under_way(*key, uuid4().hex, FUTURE_DIRECTORY)
        self._files.make_directory(target.path / name)
        write_topic_id(self._files, target.path / name, log.topic_id)
        future = self._futures[key] = log.future(target.path / name)
        try:
            for copied in future.steps(_COPY_BYTES):
                with self._workers.changed:  # another rate ends the wait
                    self._throttle.use(copied)
                if self._workers.is_stopping or self._workers.must_end(key):
                    return
            self._switch(key, log, future, target)
        finally:
            del self._futures[key]
            if self._workers.is_stopping:
                future.close()
            elif self._files.is_directory(future.directory):
                future.abandon()

    def _switch(self, key: PartitionKey, log: PartitionLog, future: FutureLog, target: DataDirectory) -> None:
        with self._background.paused([key]), self._hosted.checkpoint_lock, self._hosted.lock:
            if self._targets.get(key) is not target or self._hosted.logs.get(key) is not log:
                return
            source, cleaner = self._hosted.homes[key], self._background.cleaner
            if cleaner is not None:
                cleaner.drop_deleted(key)  # an entry of an earlier stay in the target directory
            future.take_over(lambda: self._take_place(key, log, future, source, target))
            if cleaner is not None:
                cleaner.forget(source.path, key)
            self._finished(key, target)
        _LOG.info("%s has moved from %s to %s", log.name, source.path, target.path)

    def _take_place(
        self, key: PartitionKey, log: PartitionLog, future: FutureLog, source: DataDirectory, target: DataDirectory
    ) -> Path:
        files, old = self._files, log.directory
        final = target.path / partition_directory_name(*key)
        moved = future.directory.with_name(future.directory.name.replace(FUTURE_DIRECTORY, MOVED_DIRECTORY))
        gone = source.path / deleted_directory_name(*key, uuid4().hex)
        self._hosted.homes[key] = target
        try:
            self._checkpoints.write(target)
            files.rename(future.directory, moved)
            files.sync_directory(target.path)
            try:
                files.rename(old, gone)
            except StorageError:
                files.rename(moved, future.directory)
                raise
        except BaseException:
            self._hosted.homes[key] = source
            raise
        try:
            files.sync_directory(source.path)
            source.forget(key)
            files.rename(moved, final)
            files.sync_directory(target.path)
        except StorageError as error:
            target.fail(error)  # the next start gives the copy its name
        self._deleted.add([gone], log.config.file_delete_delay_ms)
        return final
