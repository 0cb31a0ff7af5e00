"""The truncation of logs together with their checkpoints (Kafka's ``LogManager.truncateTo``).

Invariant: Before a log is truncated, the recovery-point checkpoint on the disk is lowered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from millrace.errors import MillraceError, StorageError, UnknownTopicOrPartitionError
from millrace.segments.names import partition_directory_name
from millrace_broker.log.background_work import BackgroundWork
from millrace_broker.log.checkpoint_writer import CheckpointWriter
from millrace_broker.log.checkpoints import PartitionKey
from millrace_broker.log.hosted_logs import HostedLogs
from millrace_broker.log.partition_log import PartitionLog


class CheckpointedTruncation:
    """The truncation of any of a broker's logs."""

    def __init__(self, hosted: HostedLogs, checkpoints: CheckpointWriter, background: BackgroundWork) -> None:
        self._hosted: Final = hosted
        self._checkpoints: Final = checkpoints
        self._background: Final = background

    def truncate(self, ends: Mapping[PartitionKey, int]) -> dict[PartitionKey, MillraceError]:
        """Truncate logs to offsets, as ``LogManager.truncate`` does."""
        with self._alone(ends):
            failed, logs = self._existing(ends)
            failed |= self._lower_recovery_points({key: ends[key] for key in logs})
            for key, log in logs.items():
                if key in failed:
                    continue
                try:
                    log.truncate_to(ends[key])
                except MillraceError as error:
                    failed[key] = error
                    continue
                self._tell_cleaner(key, log.log_end_offset)
            return failed

    def begin_at(self, key: PartitionKey, offset: int) -> None:
        """Delete all records of a log, as ``LogManager.begin_at`` does."""
        with self._alone([key]):
            failed, logs = self._existing([key])
            if key in failed:
                raise failed[key]
            failed = self._lower_recovery_points({key: 0})
            if key in failed:
                raise failed[key]
            logs[key].begin_at(offset)
            self._tell_cleaner(key, 0)
            self._checkpoints.write_of(key)

    @contextlib.contextmanager
    def _alone(self, partitions: Iterable[PartitionKey]) -> Iterator[None]:
        """Pause the background threads for partitions, and the writing of checkpoints."""
        with self._background.paused(partitions), self._hosted.checkpoint_lock:
            yield

    def _existing(
        self, partitions: Iterable[PartitionKey]
    ) -> tuple[dict[PartitionKey, MillraceError], dict[PartitionKey, PartitionLog]]:
        failed: dict[PartitionKey, MillraceError] = {}
        logs = {}
        for key in partitions:
            log, home = self._hosted.logs.get(key), self._hosted.homes.get(key)
            if log is None or home is None:
                failed[key] = self._hosted.failed.get(key) or UnknownTopicOrPartitionError(
                    f"partition {partition_directory_name(*key)} does not exist on this broker"
                )
            elif home.failure is not None:
                failed[key] = home.failure
            else:
                logs[key] = log
        return failed, logs

    def _lower_recovery_points(self, ends: Mapping[PartitionKey, int]) -> dict[PartitionKey, MillraceError]:
        """Lower recovery points, also on the disk. Returns the partitions for which that failed, with the errors."""
        failed: dict[PartitionKey, MillraceError] = {}
        lowered = [key for key, end in ends.items() if self._hosted.logs[key].lower_recovery_point(end)]
        for home in {id(home): home for home in map(self._hosted.homes.__getitem__, ends)}.values():
            keys = [key for key in ends if self._hosted.homes[key] is home]
            if home.must_write_recovery_points or not set(lowered).isdisjoint(keys):
                try:
                    self._checkpoints.write(home)
                except StorageError as error:
                    failed |= dict.fromkeys(keys, error)
        return failed

    def _tell_cleaner(self, key: PartitionKey, end_offset: int) -> None:
        if self._background.cleaner is not None:
            self._background.cleaner.truncated(self._hosted.homes[key].path, key, end_offset)
