"""The logs of a broker by partition, each with its log directory.

Invariants:

- A log in ``logs`` has its directory in ``homes``. A partition that could not be loaded is in ``failed``.
- ``checkpoint_lock`` is taken before ``lock``, so that a later write of a checkpoint has a later state.
"""

from __future__ import annotations

import threading
from typing import Final

from millrace.errors import MillraceError
from millrace_broker.log.checkpoints import PartitionKey
from millrace_broker.log.data_directory import DataDirectory
from millrace_broker.log.partition_log import PartitionLog


class HostedLogs:
    """The logs that ``LogManager`` and its parts share. The holder of ``lock`` may change them."""

    def __init__(self) -> None:
        self.lock: Final = threading.RLock()
        self.checkpoint_lock: Final = threading.RLock()
        """Held while checkpoints are written."""
        self.logs: Final[dict[PartitionKey, PartitionLog]] = {}
        self.homes: Final[dict[PartitionKey, DataDirectory]] = {}
        """The log directory of each partition."""
        self.failed: Final[dict[PartitionKey, MillraceError]] = {}
        """The errors of partitions that could not be loaded."""

    def online(self) -> list[PartitionLog]:
        """Return all logs whose directory works, by topic and number."""
        with self.lock:
            return [self.logs[key] for key in sorted(self.logs) if self.homes[key].failure is None]

    def offline(self) -> dict[PartitionKey, MillraceError]:
        """Return the partitions that could not be loaded or whose directory failed, with the errors."""
        with self.lock:
            lost = {key: home.failure for key, home in self.homes.items() if home.failure is not None}
            return self.failed | lost

    def in_directory(self, directory: DataDirectory) -> dict[PartitionKey, PartitionLog]:
        """Return the logs of a log directory."""
        with self.lock:
            return {key: log for key, log in self.logs.items() if self.homes[key] is directory}
