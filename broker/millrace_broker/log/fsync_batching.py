"""Waiting for the disk together: appends that come while a partition is being synced share its next sync.

Invariants
* A partition is synced by one thread at a time. A sync covers what was appended before it began: who comes later waits
  for the one after it, whoever of the waiting has to begin that.
* All methods run in the event loop's thread; syncs run in threads of their own, so that reads need not queue for them.
  Partitions are synced side by side: the file system writes one journal commit for those that wait together.
* A sync goes on when those who wait for it are cancelled. One that fails fails all that wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from millrace.errors import MillraceError
from millrace_broker.log.partition import PartitionLog

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FsyncStatistics:
    """How often appends waited for a sync, how many syncs that took, and how many are going on."""

    waits: int
    syncs: int
    in_progress: int


class FsyncBatching:
    """Syncs logs for those who must not answer before what they appended is on the disk."""

    def __init__(self, threads: int) -> None:
        self._threads: Final = ThreadPoolExecutor(threads, thread_name_prefix="millrace-sync")
        self._running: dict[PartitionLog, asyncio.Future[None]] = {}
        self._timers: dict[PartitionLog, asyncio.TimerHandle] = {}
        self._waits = 0
        self._syncs = 0

    async def synced(self, log: PartitionLog, end_offset: int) -> None:
        """Return when everything before ``end_offset`` is on the disk. Raises ``StorageError`` when a sync fails."""
        self._waits += 1
        while log.recovery_point < end_offset:
            running = self._running.get(log)
            if running is None or running.done():  # its callback, which forgets it, may not have run yet
                running = self._begin(log)
            await asyncio.shield(running)

    def sync_within(self, log: PartitionLog, delay_s: float) -> None:
        """Have what has been appended synced within a time (``flush.ms``); failures take the partition offline."""
        if log not in self._timers:
            self._timers[log] = asyncio.get_running_loop().call_later(delay_s, self._sync_in_time, log)

    def _sync_in_time(self, log: PartitionLog) -> None:
        del self._timers[log]
        if log not in self._running:
            self._begin(log)

    def _begin(self, log: PartitionLog) -> asyncio.Future[None]:
        running = asyncio.get_running_loop().run_in_executor(self._threads, log.flush)
        self._syncs += 1
        self._running[log] = running
        running.add_done_callback(lambda done: self._ended(log, done))
        return running

    def _ended(self, log: PartitionLog, done: asyncio.Future[None]) -> None:
        if self._running.get(log) is done:
            del self._running[log]
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, MillraceError):  # the log has logged its own
            _logger.error("syncing %s failed unexpectedly", log.name, exc_info=error)

    def statistics(self) -> FsyncStatistics:
        """The present numbers."""
        return FsyncStatistics(waits=self._waits, syncs=self._syncs, in_progress=len(self._running))

    def close(self) -> None:
        """Wait for the syncs that run; nobody may be waiting any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._threads.shutdown()
