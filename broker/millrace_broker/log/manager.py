"""All partitions of a broker, Kafka's ``LogManager``.

Invariants:

- A directory is used only under its lock. It is shut down cleanly only if all its partitions closed without an error.
- A partition directory gets its name last, and loses its name before anything is removed. So it is always complete.
- A recovery-point checkpoint never promises more than has been synced.
- A partition that could not be loaded, or whose directory failed, is *offline*; the other partitions work.

``LogManager`` owns ``HostedLogs``, ``CheckpointWriter``, ``CheckpointedTruncation``, ``DirectoryMoves`` and
``BackgroundWork``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from millrace.config.topic import TopicConfig
from millrace.errors import (
    InconsistentTopicIdError,
    MillraceError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from millrace.segments.names import (
    deleted_directory_name,
    parse_partition_directory_name,
    partition_directory_name,
)
from millrace_broker.log.background_work import BackgroundWork
from millrace_broker.log.checkpoint_writer import CheckpointWriter
from millrace_broker.log.checkpointed_truncation import CheckpointedTruncation
from millrace_broker.log.checkpoints import PartitionKey
from millrace_broker.log.cleaning.batches import TopicKeys
from millrace_broker.log.cleaning.checkpoints import CleanerCheckpoints
from millrace_broker.log.cleaning.log_cleaner import CleanerSettings, CompactedPartition, LogCleaner
from millrace_broker.log.data_directory import DataDirectory
from millrace_broker.log.deleted_files import DeletedFiles
from millrace_broker.log.directory_moves import DirectoryMoves
from millrace_broker.log.files import Files, OsFiles
from millrace_broker.log.hosted_logs import HostedLogs
from millrace_broker.log.log_directories import LogDirectories
from millrace_broker.log.open_segments import OpenSegments
from millrace_broker.log.partition_log import PartitionLog
from millrace_broker.log.partition_metadata import read_topic_id
from millrace_broker.log.recovery_threads import Progress, find_partitions, load_all
from millrace_broker.log.remote_log_manager import RemoteLogManager
from millrace_broker.log.tiered.deletions import RemoteDeletions
from millrace_broker.log.tiered.settings import TieringSettings
from millrace_broker.log.tiered.store import RemoteStore
from millrace_broker.runtime import Clock, SystemClock

_LOG: Final = logging.getLogger(__name__)

RETENTION_CHECK_INTERVAL_MS: Final = 300_000
CHECKPOINT_INTERVAL_MS: Final = 60_000
PRODUCER_EXPIRATION_MS: Final = 86_400_000

RECOVERY_THREADS: Final = 1


class LogManager:
    """The broker's partitions, over one or more log directories."""

    def __init__(
        self,
        directories: LogDirectories,
        defaults: TopicConfig,
        clock: Clock,
        *,
        retention_check_interval_ms: int,
        initial_task_delay_ms: int,
        checkpoint_interval_ms: int,
        producer_expiration_ms: int,
    ) -> None:
        self._directories = directories
        self.defaults = defaults
        """The configuration of topics without their own. It may be changed."""
        self._files: Final = directories.files
        self._clock: Final = clock
        self._retention_check_interval_s: Final = retention_check_interval_ms / 1000
        self._checkpoint_interval_s: Final = checkpoint_interval_ms / 1000
        self.producer_expiration_ms = producer_expiration_ms
        """The expiration of idle producers, in ms. It may be changed."""
        self._hosted: Final = HostedLogs()
        self._checkpoints: Final = CheckpointWriter(directories, self._hosted)
        self._background: Final = BackgroundWork()
        self._truncation: Final = CheckpointedTruncation(self._hosted, self._checkpoints, self._background)
        self._deleted: Final = DeletedFiles(directories.files, clock)
        self.moves: Final = DirectoryMoves(
            directories, self._hosted, self._checkpoints, self._deleted, self._background, clock
        )
        self._open_segments: Final = OpenSegments()
        self._configs: dict[str, TopicConfig] = {}
        self._is_closed = False
        self._holds_watermarks = False
        now = clock.monotonic()
        self._next_retention = now + initial_task_delay_ms / 1000
        self._next_checkpoint = now + self._checkpoint_interval_s

    @classmethod
    def open(
        cls,
        dirs: Sequence[Path],
        *,
        broker_id: int,
        cluster_id: str,
        defaults: TopicConfig,
        files: Files | None = None,
        clock: Clock | None = None,
        on_progress: Progress | None = None,
        configs: Mapping[str, TopicConfig] | None = None,
        retention_check_interval_ms: int = RETENTION_CHECK_INTERVAL_MS,
        initial_task_delay_ms: int = 0,
        checkpoint_interval_ms: int = CHECKPOINT_INTERVAL_MS,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        recovery_threads: int = RECOVERY_THREADS,
        holds_watermarks: bool = False,
    ) -> LogManager:
        """Lock the directories and load all their partitions, with recovery where the last stop was not clean.

        ``configs`` has the configuration of topics that differ from ``defaults``. ``recovery_threads`` is how many
        partitions of each directory are loaded in parallel. With ``holds_watermarks`` this broker leads no partition
        yet. High watermarks then start at their checkpoint instead of the log end, until replication sets them.
        Partitions that cannot be loaded are in ``offline``, failed directories in ``failed_directories``.

        Raises ``EnvironmentProblemError`` when a directory is in use or not this broker's, and ``StorageError`` when
        none of them can be used.
        """
        clock = clock or SystemClock()
        directories = LogDirectories(files or OsFiles())
        try:
            directories.open([Path(path) for path in dirs], broker_id=broker_id, cluster_id=cluster_id)
            manager = cls(
                directories,
                defaults,
                clock,
                retention_check_interval_ms=retention_check_interval_ms,
                initial_task_delay_ms=initial_task_delay_ms,
                checkpoint_interval_ms=checkpoint_interval_ms,
                producer_expiration_ms=producer_expiration_ms,
            )
            manager._configs = dict(configs or {})
            manager._holds_watermarks = holds_watermarks
            manager._load(on_progress or (lambda loaded, total, name: None), recovery_threads)
        except BaseException:
            directories.release()
            raise
        return manager

    # --- loading -------------------------------------------------------------------------------------------

    def _load(self, on_progress: Progress, threads: int) -> None:
        self.moves.complete_decided()
        found = [(directory, find_partitions(directory)) for directory in self._directories]
        load_all(found, self._load_partition, threads_per_directory=threads, on_progress=on_progress)
        self._retire_failed()
        for directory in self._directories:
            directory.forget_others(self._hosted.homes.keys())
            if not directory.was_clean:  # recovered logs are synced, so another crash need not recover them again
                self._checkpoints.try_write(directory)

    def _load_partition(self, directory: DataDirectory, name: str) -> None:
        key = topic, partition = parse_partition_directory_name(name)
        path = directory.path / name
        try:
            with self._hosted.lock:
                other = self._hosted.homes.setdefault(key, directory)
            if other is not directory:
                raise StorageError(f"{path} is a second copy of {name}, beside {other.path}: remove one")
            is_tiered = self._config_of(topic).remote_storage_enable
            log = PartitionLog(
                topic=topic,
                topic_id=read_topic_id(self._files, path),
                partition=partition,
                directory=path,
                config=self._config_of(topic),
                files=self._files,
                clock=self._clock,
                open_segments=self._open_segments,
                recovery_point=directory.recovery_point(key),
                log_start_offset=directory.log_start_offsets.get(key, 0),
                was_clean=directory.was_clean,
                starts_remotely=is_tiered and key in directory.log_start_offsets,
            )
        except MillraceError as error:
            _LOG.error("%s is offline: %s", name, error.message)
            with self._hosted.lock:
                self._hosted.failed[key] = error
            directory.keep_checkpoints(key)
            return
        if self._holds_watermarks:
            log.is_led_here = False
            log.hold_watermark(self.checkpointed_watermark(*key))
        with self._hosted.lock:
            self._hosted.logs[key] = log

    def _config_of(self, topic: str) -> TopicConfig:
        return self._configs.get(topic, self.defaults)

    # --- partitions ----------------------------------------------------------------------------------------

    def create_log(
        self, topic: str, topic_id: UUID, partition: int, config: TopicConfig | None = None, *, is_new: bool = True
    ) -> PartitionLog:
        """Create a partition in the directory with the fewest partitions, or return the existing one.

        A directory that is full or fails is skipped. A partition that is not ``is_new`` may exist in a failed
        directory, and then is not created in another one.

        Raises ``InconsistentTopicIdError`` when it exists with another topic id, and ``StorageError`` when it is
        offline or no directory accepts it.
        """
        self._leave_gone_out((topic, partition))
        with self._hosted.lock:
            existing = self.get(topic, partition)
            if existing is not None:
                if existing.topic_id != topic_id:
                    raise InconsistentTopicIdError(
                        f"{existing.name} is there with topic id {existing.topic_id}, not {topic_id}: delete it first"
                    )
                return existing
            if config is not None:
                self._configs[topic] = config
            if not is_new and (failed := self.failed_directories()):
                raise StorageError(
                    f"{partition_directory_name(topic, partition)} may be in a log directory that is offline "
                    f"({', '.join(map(str, failed))}): repair it and start the broker again"
                )
            directory, path = self._directories.place(self._hosted.homes.values(), topic, topic_id, partition)
            log = PartitionLog(
                topic=topic,
                topic_id=topic_id,
                partition=partition,
                directory=path,
                config=self._config_of(topic),
                files=self._files,
                clock=self._clock,
                open_segments=self._open_segments,
                was_clean=True,
            )
            log.is_led_here = not self._holds_watermarks
            self._hosted.logs[topic, partition] = log
            self._hosted.homes[topic, partition] = directory
            if self.tiering is not None and log.config.remote_storage_enable:
                self.tiering.attach(log)
            return log

    def _leave_gone_out(self, key: PartitionKey) -> None:
        """Rewrite checkpoints that still name a deleted partition of this name. Raises ``StorageError``."""
        for directory in self._directories:
            if directory.names_gone(key):
                self._checkpoints.write(directory)
        if self.cleaner is not None:
            self.cleaner.drop_deleted(key)

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """Return a partition's log; None if there is none. Raises ``StorageError`` when it is offline."""
        key = (topic, partition)
        home = self._hosted.homes.get(key)
        problem = self._hosted.failed.get(key) or (None if home is None else home.failure)
        if problem is not None:
            raise StorageError(f"{partition_directory_name(topic, partition)} is offline: {problem.message}")
        return self._hosted.logs.get(key)

    def _existing(self, topic: str, partition: int) -> PartitionLog:
        log = self.get(topic, partition)
        if log is None:
            raise UnknownTopicOrPartitionError(f"there is no partition {partition_directory_name(topic, partition)}")
        return log

    def logs(self) -> list[PartitionLog]:
        """Return all partitions that are online, by topic and number."""
        return self._hosted.online()

    def by_directory(self) -> dict[Path, dict[PartitionKey, PartitionLog]]:
        """Return the partitions of each log directory that works."""
        return {directory.path: self._hosted.in_directory(directory) for directory in self._directories}

    def offline(self) -> dict[PartitionKey, MillraceError]:
        """Return the partitions that could not be loaded or whose directory failed, with the errors."""
        return self._hosted.offline()

    def failed_directories(self) -> dict[Path, MillraceError]:
        """Return the log directories that have failed, at start or later, with the errors."""
        return self._directories.failures()

    @property
    def cleaner(self) -> LogCleaner | None:
        """The log cleaner; None before ``start_cleaner``."""
        return self._background.cleaner

    @property
    def tiering(self) -> RemoteLogManager | None:
        """The threads of tiered storage; None before ``start_tiering``."""
        return self._background.tiering

    @property
    def has_directories(self) -> bool:
        """True if any log directory works."""
        return len(self._directories) > 0

    def _retire_failed(self) -> None:
        """Release directories that have failed; nothing in them is touched again."""
        for directory in self._directories.take_failed():
            logs = self._hosted.in_directory(directory).values()
            for log in logs:
                if self.tiering is not None:
                    self.tiering.detach(log)
                log.release()
            directory.release()
            _LOG.error("%d partitions of %s are offline", len(logs), directory.path)

    def delete_log(self, topic: str, partition: int, *, has_other_replicas: bool = False) -> None:
        """Delete a partition. Its name is removed durably at once, its files after ``file.delete.delay.ms``.

        Its copies in the remote store are deleted too, unless it ``has_other_replicas``, which own them. Raises
        ``UnknownTopicOrPartitionError`` when there is no such partition.
        """
        key = (topic, partition)
        self.moves.cancel(key)
        # Pause the cleaner before taking the lock, because a cleaning may need the lock to end.
        with self._background.paused([key]), self._hosted.checkpoint_lock, self._hosted.lock:
            log = self._existing(topic, partition)
            del self._hosted.logs[key]
            directory = self._hosted.homes.pop(key)
            if self.cleaner is not None:
                self.cleaner.forget(directory.path, key)
            if self.tiering is not None and log.remote is not None:
                (self.tiering.detach if has_other_replicas else self.tiering.delete)(log)
            log.release()
            gone = directory.path / deleted_directory_name(topic, partition, uuid4().hex)
            self._files.rename(log.directory, gone)
            self._files.sync_directory(directory.path)
            directory.forget(key)
            self._deleted.add([gone], log.config.file_delete_delay_ms)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Delete the records of a partition before an offset, durably; returns the new log start offset.

        Raises ``UnknownTopicOrPartitionError`` and the errors of ``PartitionLog.delete_records``.
        """
        key = (topic, partition)
        with self._background.cleaner_paused(key), self._hosted.checkpoint_lock:
            log_start_offset = self._existing(topic, partition).delete_records(before_offset)
            self._checkpoints.write_of(key)
            return log_start_offset

    def set_config(self, topic: str, config: TopicConfig) -> None:
        """Set the configuration of a topic for its present and future partitions."""
        with self._hosted.lock:
            self._configs[topic] = config
            for (name, _), log in self._hosted.logs.items():
                if name == topic:
                    log.config = config
        if self.tiering is not None:
            self.tiering.follow([log for log in self.logs() if log.topic == topic])

    # --- replication ---------------------------------------------------------------------------------------

    def checkpointed_watermark(self, topic: str, partition: int) -> int:
        """Return the high watermark of the last checkpoint before this start; 0 if there is none."""
        return self._checkpoints.high_watermark((topic, partition))

    def checkpoint_watermarks(self) -> None:
        """Write the high watermarks of all directories; the next call retries failed writes."""
        self._checkpoints.write_high_watermarks()

    def truncate(self, ends: Mapping[PartitionKey, int]) -> dict[PartitionKey, MillraceError]:
        """Truncate logs to offsets, and forget the epochs that begin there or later (``PartitionLog.truncate_to``).

        Returns the partitions for which that failed, with the errors.
        """
        return self._truncation.truncate(ends)

    def begin_at(self, topic: str, partition: int, offset: int) -> None:
        """Delete all records of a log; it starts empty at an offset. Raises the errors of ``PartitionLog.begin_at``."""
        self._truncation.begin_at((topic, partition), offset)

    # --- compaction ----------------------------------------------------------------------------------------

    def start_cleaner(self, settings: CleanerSettings, keys_of: Callable[[str], TopicKeys]) -> LogCleaner:
        """Start threads that clean the partitions of compacted topics until ``close``.

        ``keys_of`` returns the keys of a topic. Raises ``StorageError`` when a checkpoint of the cleaner is damaged.
        """

        def find_compacted() -> list[CompactedPartition]:
            with self._hosted.lock:
                homes = dict(self._hosted.homes)
            return [
                CompactedPartition(log, homes[log.topic, log.partition].path, keys_of(log.topic))
                for log in self.logs()
                if log.config.is_compacted and (log.topic, log.partition) in homes
            ]

        def write_recovery_point(partition: CompactedPartition) -> None:
            self._checkpoints.write_of(partition.partition)

        paths = [each.path for each in self._directories]
        checkpoints = CleanerCheckpoints(self._files, paths, self._hosted.homes.keys())
        self._background.cleaner = cleaner = LogCleaner(
            settings, find_compacted, checkpoints, self._files, self._clock, before_cleaning=write_recovery_point
        )
        cleaner.start()
        return cleaner

    # --- tiered storage ------------------------------------------------------------------------------------

    def start_tiering(self, settings: TieringSettings, store: RemoteStore) -> RemoteLogManager:
        """Start threads that copy the partitions of tiered topics to a store until ``close``.

        Raises ``StorageError`` when the file of pending remote deletions is damaged.
        """
        self._background.tiering = tiering = RemoteLogManager(
            settings,
            store,
            RemoteDeletions(self._files, next(iter(self._directories)).path),
            self._files,
            self._clock,
            write_start=lambda log: self._checkpoints.write_of((log.topic, log.partition)),
        )
        tiering.follow(self.logs())
        tiering.start()
        return tiering

    # --- periodic work -------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write the recovery points, high watermarks and log start offsets of all directories.

        Raises ``StorageError``.
        """
        self._checkpoints.write_all()

    def tick(self) -> None:
        """Do the work that is due: flushes, retention, checkpoints.

        Call it about once a second, outside the event loop, because it waits for the disk.

        If a partition's disk fails, the error is logged and that partition takes no more appends; the others continue.
        """
        self._retire_failed()
        now = self._clock.monotonic()
        retention_is_due = now >= self._next_retention
        if retention_is_due:
            self._next_retention = now + self._retention_check_interval_s
        if retention_is_due and self.tiering is not None:
            self._checkpoints.try_write_all()  # the start of a tiered log, before its first local segment is deleted
        for log in self.logs():
            try:
                if retention_is_due and (self.tiering is None or self._checkpoints.may_lose_first_segment(log)):
                    log.apply_retention()
                log.tick(producer_expiration_ms=self.producer_expiration_ms)
            except MillraceError as error:
                _LOG.error("%s: %s", log.name, error.message)
        try:
            self._deleted.remove_due()
        except StorageError as error:
            _LOG.error("deleted partitions: %s", error.message)
        if now >= self._next_checkpoint:
            self._next_checkpoint = now + self._checkpoint_interval_s
            self._checkpoints.try_write_all()

    def close(self) -> None:
        """Shut down cleanly: close all partitions, write the checkpoints, mark the directories, unlock them.

        A directory with a partition that could not be closed, or that is offline, is not marked, so that the next start
        recovers it. Closing again does nothing.
        """
        with self._hosted.lock:
            if self._is_closed:
                return
            self._is_closed = True
        self.moves.stop()
        self._background.stop()
        failed: set[Path] = set()
        self._retire_failed()
        for key, log in sorted(self._hosted.logs.items()):
            if self._hosted.homes[key].failure is not None:
                continue
            try:
                log.close()
            except MillraceError as error:
                _LOG.error("%s was not closed cleanly: %s", log.name, error.message)
                log.release()
                failed.add(self._hosted.homes[key].path)
        for directory in self._directories:
            try:
                self._checkpoints.write(directory)
                if directory.path not in failed:
                    directory.mark_clean()
            except StorageError as error:
                _LOG.error("%s was not closed cleanly: %s", directory.path, error.message)
        self._directories.release()
