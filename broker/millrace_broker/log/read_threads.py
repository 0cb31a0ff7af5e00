"""Execution of log reads in the right threads.

A read runs in the event loop, in the threads for disks, or in those for the remote store.

Invariants

- The event loop reads only records that were appended a moment ago, which are in memory.
- A read that waits for the remote store takes no thread from reads of the broker's own disks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from millrace_broker.log.partition_log import PartitionLog
from millrace_broker.log.tiered.remote_reads import RemoteReaders, RemoteReadStatistics
from millrace_broker.runtime import Executors

_P = ParamSpec("_P")
_T = TypeVar("_T")


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
        if log.is_recent(offset) and self._executors.small_work.includes(0):
            return self._executors.small_work.do(function, *args, **kwargs)
        return await self.run_search(log, offset, function, *args, **kwargs)

    async def run_search(
        self, log: PartitionLog, offset: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a function that searches a log from an offset on, with indexes and aborted transactions.

        It never runs in the event loop. Raises ``ThrottledError`` when too many reads wait for the remote store.
        """
        if log.is_remote(offset):
            return await self._remote_readers.run(lambda: function(*args, **kwargs))
        return await self._executors.run_io(function, *args, **kwargs)

    def resize_remote(self, threads: int) -> None:
        """Apply ``remote.log.reader.threads``."""
        self._remote_readers.resize(threads)

    def statistics(self) -> RemoteReadStatistics:
        """Return the present numbers of reads from the remote store."""
        return self._remote_readers.statistics()

    def close(self) -> None:
        """Stop the threads for the remote store."""
        self._remote_readers.close()
