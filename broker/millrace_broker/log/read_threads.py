"""Execution of log reads in the right threads.

A read runs in the event loop, in the threads for disks, or in those for the remote store.

Invariants

- The event loop reads only records that are in memory. They were appended a moment ago, or the kernel says so.
- A read that waits for the remote store takes no thread from reads of the broker's own disks.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, ParamSpec, TypeVar

from millrace_broker.log.partition_log import PartitionLog
from millrace_broker.log.tiered.remote_reads import RemoteReaders, RemoteReadStatistics
from millrace_broker.runtime import Executors

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ReadPlace(Enum):
    """Place in which a read runs."""

    EVENT_LOOP = auto()
    IO_THREAD = auto()
    REMOTE_READER = auto()


class LogReads:
    """The execution of functions that read logs. For the event loop's thread."""

    def __init__(self, executors: Executors, remote_readers: RemoteReaders) -> None:
        self._executors: Final = executors
        self._remote_readers: Final = remote_readers

    async def run_read(
        self, log: PartitionLog, offset: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a function that reads batches from an offset on, in the event loop if they were just appended.

        Otherwise this is ``run_search``, with the same errors.
        """
        return await self.run_in(self.place_of_read(log, offset), function, *args, **kwargs)

    async def run_search(
        self, log: PartitionLog, offset: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a function that searches a log from an offset on, with indexes and aborted transactions.

        It never runs in the event loop. Raises ``ThrottledError`` when too many reads wait for the remote store.
        """
        return await self.run_in(self.place_of_search(log, offset), function, *args, **kwargs)

    def place_of_read(self, log: PartitionLog, offset: int) -> ReadPlace:
        """Return where ``run_read`` runs."""
        if log.is_recent(offset) and self._executors.small_work.includes(0):
            return ReadPlace.EVENT_LOOP
        return self.place_of_search(log, offset)

    def place_of_cached_read(self, log: PartitionLog, offset: int, size_bytes: int) -> ReadPlace:
        """Return where ``run_read`` of so many bytes runs, if the event loop also reads from the page cache."""
        place = self.place_of_read(log, offset)
        may_read = place is ReadPlace.IO_THREAD and self._executors.small_work.includes(size_bytes)
        return ReadPlace.EVENT_LOOP if may_read and log.segment_of(offset).is_cached(offset, size_bytes) else place

    def place_of_search(self, log: PartitionLog, offset: int) -> ReadPlace:
        """Return where ``run_search`` runs."""
        return ReadPlace.REMOTE_READER if log.is_remote(offset) else ReadPlace.IO_THREAD

    async def run_in(self, place: ReadPlace, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function, which may read several logs of the same place. Raises the errors of ``run_search``."""
        match place:
            case ReadPlace.EVENT_LOOP:
                return self._executors.small_work.do(function, *args, **kwargs)
            case ReadPlace.IO_THREAD:
                return await self._executors.run_io(function, *args, **kwargs)
            case ReadPlace.REMOTE_READER:
                return await self._remote_readers.run(lambda: function(*args, **kwargs))

    def resize_remote(self, threads: int) -> None:
        """Apply ``remote.log.reader.threads``."""
        self._remote_readers.resize(threads)

    def statistics(self) -> RemoteReadStatistics:
        """Return the present numbers of reads from the remote store."""
        return self._remote_readers.statistics()

    def close(self) -> None:
        """Stop the threads for the remote store."""
        self._remote_readers.close()
