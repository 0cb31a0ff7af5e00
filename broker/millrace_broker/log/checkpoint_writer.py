"""The checkpoints of all logs of a broker (Kafka's ``LogManager.checkpointLogRecoveryOffsets``).

Invariant: A recovery-point checkpoint never promises more than has been synced.
"""

from __future__ import annotations

import logging
from typing import Final

from millrace.errors import StorageError
from millrace_broker.log.checkpoints import PartitionKey
from millrace_broker.log.data_directory import DataDirectory
from millrace_broker.log.hosted_logs import HostedLogs
from millrace_broker.log.log_directories import LogDirectories
from millrace_broker.log.partition_log import PartitionLog

_LOG: Final = logging.getLogger(__name__)


class CheckpointWriter:
    """The writer of recovery points, high watermarks and log start offsets."""

    def __init__(self, directories: LogDirectories, hosted: HostedLogs) -> None:
        self._directories: Final = directories
        self._hosted: Final = hosted

    def high_watermark(self, key: PartitionKey) -> int:
        """Return the high watermark of the last checkpoint before this start; 0 if there is none."""
        home = self._hosted.homes.get(key)
        return 0 if home is None else home.high_watermarks.get(key, 0)

    def write(self, directory: DataDirectory) -> None:
        """Write the checkpoints of a log directory. Raises ``StorageError``."""
        with self._hosted.checkpoint_lock:
            logs = self._hosted.in_directory(directory)
            directory.write_checkpoints(
                {key: log.recovery_point for key, log in logs.items()},
                {key: log.high_watermark for key, log in logs.items()},
                {
                    key: log.log_start_offset
                    for key, log in logs.items()
                    if log.log_start_offset != log.first_base_offset or log.config.remote_storage_enable
                },
            )

    def write_of(self, key: PartitionKey) -> None:
        """Write the checkpoints of a partition's log directory. Raises ``StorageError``."""
        self.write(self._hosted.homes[key])

    def write_all(self) -> None:
        """Write the checkpoints of all log directories. Raises ``StorageError``."""
        for directory in self._directories:
            self.write(directory)

    def try_write(self, directory: DataDirectory) -> None:
        """Write the checkpoints of a log directory; log an error."""
        try:
            self.write(directory)
        except StorageError as error:
            _LOG.error("checkpoints of %s: %s", directory.path, error.message)

    def try_write_all(self) -> None:
        """Write the checkpoints of all log directories; log errors."""
        for directory in self._directories:
            self.try_write(directory)

    def may_lose_first_segment(self, log: PartitionLog) -> bool:
        """Return whether a log's local segments may be deleted. That of a tiered log needs a written start."""
        key = (log.topic, log.partition)
        return not log.config.remote_storage_enable or self._hosted.homes[key].has_log_start(key)

    def write_high_watermarks(self) -> None:
        """Write the high watermarks of all log directories; the next call retries failed writes."""
        for directory in self._directories:
            with self._hosted.checkpoint_lock:
                watermarks = {key: log.high_watermark for key, log in self._hosted.in_directory(directory).items()}
                try:
                    directory.write_high_watermarks(watermarks)
                except StorageError as error:
                    _LOG.error("high watermarks of %s: %s", directory.path, error.message)
