"""Shared fsyncs of appends to a partition.

Appends that arrive during a sync share the next one.

Invariants:

* One thread at a time syncs a partition. A sync covers the appends before its start. A later append waits for the next
  sync, which one of the waiting appends starts.
* All methods run in the event loop's thread. Syncs run in threads of their own, so that reads do not queue behind them.
* Partitions are synced in parallel. The file system writes one journal commit for all syncs that wait together.
* A sync continues when its waiting calls are cancelled. A failed sync fails all calls that wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from millrace.errors import MillraceError, NotLeaderError
from millrace_broker.log.partition_log import PartitionLog
from millrace_broker.runtime import ResizableThreadPool

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FsyncStatistics:
    """The syncs in numbers.

    ``waits`` counts the calls of ``synced``, and ``syncs`` the started syncs.
    """

    waits: int
    syncs: int
    in_progress: int


class FsyncBatching:
    """Syncs of logs that several calls share.

    A call awaits ``synced`` if it must not answer before its appends are on the disk.
    """

    def __init__(self, threads: int) -> None:
        self._threads: Final = ResizableThreadPool(threads, "millrace-sync")
        self._running: dict[PartitionLog, asyncio.Future[None]] = {}
        self._timers: dict[PartitionLog, asyncio.TimerHandle] = {}
        self._waits = 0
        self._syncs = 0

    async def synced(self, log: PartitionLog, end_offset: int) -> None:
        """Wait until all records before ``end_offset`` are on the disk.

        Raises ``StorageError`` when a sync fails. Raises ``NotLeaderError`` when the records are gone, because this
        broker became a follower and truncated them.
        """
        self._waits += 1
        while log.recovery_point < end_offset:
            if log.log_end_offset < end_offset:
                raise NotLeaderError(
                    f"records of {log.name} were truncated before they were on the disk: fetch the metadata again, "
                    "and send them to the new leader"
                )
            running = self._running.get(log)
            if running is None or running.done():  # its callback, which removes it, may not have run yet
                running = self._begin(log)
            await asyncio.shield(running)

    def sync_within(self, log: PartitionLog, delay_s: float) -> None:
        """Sync the appended records within a time (``flush.ms``); a failure takes the partition offline."""
        if log not in self._timers:
            self._timers[log] = asyncio.get_running_loop().call_later(delay_s, self._sync_in_time, log)

    def _sync_in_time(self, log: PartitionLog) -> None:
        del self._timers[log]
        if log not in self._running:
            self._begin(log)

    def _begin(self, log: PartitionLog) -> asyncio.Future[None]:
        running = self._threads.run(log.flush)
        self._syncs += 1
        self._running[log] = running
        running.add_done_callback(lambda done: self._ended(log, done))
        return running

    def _ended(self, log: PartitionLog, done: asyncio.Future[None]) -> None:
        if self._running.get(log) is done:
            del self._running[log]
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, MillraceError):  # the log has reported its own error
            _logger.error("syncing %s failed unexpectedly", log.name, exc_info=error)

    def resize(self, threads: int) -> None:
        """Set the number of threads. The old threads finish the syncs that they have."""
        self._threads.resize(threads)

    def statistics(self) -> FsyncStatistics:
        """Return the present numbers."""
        return FsyncStatistics(waits=self._waits, syncs=self._syncs, in_progress=len(self._running))

    def close(self) -> None:
        """Wait for the running syncs; no call may wait any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._threads.close()
