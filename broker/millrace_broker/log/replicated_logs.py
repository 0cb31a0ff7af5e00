"""The logs as replicas: checkpoints of high watermarks, truncation, new starts.

Invariant: before a log is truncated, the recovery-point checkpoint on the disk is lowered.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from millrace.errors import MillraceError, StorageError, UnknownTopicOrPartitionError
from millrace.segments.names import partition_directory_name
from millrace_broker.log.checkpoints import Partition

if TYPE_CHECKING:
    from millrace_broker.log.cleaning.threads import LogCleaner
    from millrace_broker.log.data_directory import DataDirectory
    from millrace_broker.log.log_directories import LogDirectories
    from millrace_broker.log.partition import PartitionLog
    from millrace_broker.log.tiered.manager import RemoteLogManager

_LOG = logging.getLogger(__name__)


class ReplicatedLogs:
    """The operations of ``LogManager`` for replication; the manager sets the attributes."""

    _directories: LogDirectories
    _lock: threading.RLock
    _checkpoint_lock: threading.RLock
    _logs: dict[Partition, PartitionLog]
    _homes: dict[Partition, DataDirectory]
    cleaner: LogCleaner | None
    tiering: RemoteLogManager | None

    def checkpointed_watermark(self, topic: str, partition: int) -> int:
        """Return the high watermark of the last checkpoint before this start; 0 if there is none."""
        home = self._homes.get((topic, partition))
        return 0 if home is None else home.high_watermarks.get((topic, partition), 0)

    def checkpoint_watermarks(self) -> None:
        """Write the high watermarks of all directories; the next call retries failed writes."""
        for directory in self._directories:
            with self._checkpoint_lock:
                with self._lock:
                    watermarks = {
                        key: log.high_watermark for key, log in self._logs.items() if self._homes[key] is directory
                    }
                try:
                    directory.write_high_watermarks(watermarks)
                except StorageError as error:
                    _LOG.error("high watermarks of %s: %s", directory.path, error.message)

    def truncate(self, ends: Mapping[Partition, int]) -> dict[Partition, MillraceError]:
        """Truncate logs to offsets, and forget the epochs that begin there or later (``PartitionLog.truncate_to``).

        Returns the partitions for which that failed, with the errors.
        """
        with self._alone(ends):
            failed, logs = self._existing(ends)
            self._take_back({key: ends[key] for key in logs})
            for key, log in logs.items():
                try:
                    log.truncate_to(ends[key])
                except MillraceError as error:
                    failed[key] = error
                    continue
                self._cleaner_goes_back(key, log.log_end_offset)
            return failed

    def begin_at(self, topic: str, partition: int, offset: int) -> None:
        """Delete all records of a log; it starts empty at an offset. Raises the errors of ``PartitionLog.begin_at``."""
        key = (topic, partition)
        with self._alone([key]):
            failed, logs = self._existing([key])
            if key in failed:
                raise failed[key]
            self._take_back({key: 0})
            logs[key].begin_at(offset)
            self._cleaner_goes_back(key, 0)
            self._write_checkpoints(self._homes[key])

    def _write_checkpoints(self, directory: DataDirectory) -> None:
        raise NotImplementedError

    @contextlib.contextmanager
    def _alone(self, partitions: Iterable[Partition]) -> Iterator[None]:
        """Pause the cleaner and tiering for partitions, and the writing of checkpoints."""
        with contextlib.ExitStack() as stack:
            for key in sorted(partitions):
                for worker in (self.cleaner, self.tiering):
                    if worker is not None:
                        stack.enter_context(worker.paused(key))
            stack.enter_context(self._checkpoint_lock)
            yield

    def _existing(
        self, partitions: Iterable[Partition]
    ) -> tuple[dict[Partition, MillraceError], dict[Partition, PartitionLog]]:
        failed: dict[Partition, MillraceError] = {}
        logs = {}
        for key in partitions:
            log, home = self._logs.get(key), self._homes.get(key)
            if log is None or home is None:
                failed[key] = UnknownTopicOrPartitionError(f"there is no partition {partition_directory_name(*key)}")
            elif home.failure is not None:
                failed[key] = home.failure
            else:
                logs[key] = log
        return failed, logs

    def _take_back(self, ends: Mapping[Partition, int]) -> None:
        """Lower recovery points, also on the disk. Raises ``StorageError``."""
        homes = {
            id(home): home
            for key, end in ends.items()
            if self._logs[key].lower_recovery_point(end) and (home := self._homes[key])
        }
        for home in homes.values():
            self._write_checkpoints(home)

    def _cleaner_goes_back(self, key: Partition, end_offset: int) -> None:
        if self.cleaner is not None:
            self.cleaner.truncated(self._homes[key].path, key, end_offset)
