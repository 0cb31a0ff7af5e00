"""The background threads that work on a broker's logs.

These are the log cleaner and the remote log manager.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from millrace_broker.log.checkpoints import PartitionKey
from millrace_broker.log.cleaning.log_cleaner import LogCleaner
from millrace_broker.log.remote_log_manager import RemoteLogManager


class BackgroundWork:
    """The started background threads. Each is None until it is started."""

    def __init__(self) -> None:
        self.cleaner: LogCleaner | None = None
        self.tiering: RemoteLogManager | None = None

    @contextlib.contextmanager
    def paused(self, partitions: Iterable[PartitionKey]) -> Iterator[None]:
        """Keep the threads from partitions. Enter this context before taking a lock that a cleaning may need to end."""
        with contextlib.ExitStack() as stack:
            for key in sorted(partitions):
                for worker in (self.cleaner, self.tiering):
                    if worker is not None:
                        stack.enter_context(worker.paused(key))
            yield

    @contextlib.contextmanager
    def cleaner_paused(self, key: PartitionKey) -> Iterator[None]:
        """Keep the log cleaner from a partition."""
        with contextlib.nullcontext() if self.cleaner is None else self.cleaner.paused(key):
            yield

    def stop(self) -> None:
        """Stop all threads."""
        if self.cleaner is not None:
            self.cleaner.stop()
        if self.tiering is not None:
            self.tiering.stop()
