"""The threads that read from the remote store.

Reads of the broker's own disks do not wait for them. The limits are ``remote.log.reader.threads`` and
``remote.log.reader.max.pending.tasks``. If the queue is full, a read fails at once with a retriable error, rather than
after the client's time-out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from millrace.errors import ThrottledError
from millrace_broker.runtime import ResizableThreadPool

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RemoteReadStatistics:
    """The reads from the remote store in numbers.

    ``pending`` reads are in progress or waiting. ``done`` reads have ended. ``refused`` reads found too many waiting.
    """

    pending: int
    done: int
    refused: int


class RemoteReaders:
    """The execution of reads from the remote store. For one event loop."""

    def __init__(self, threads: int, pending_max: int) -> None:
        self._waiting_max: Final = pending_max
        self._pool: Final = ResizableThreadPool(threads, "millrace-remote-read")
        self._pending = self._done = self._refused = 0

    async def run(self, function: Callable[[], _T]) -> _T:
        """Run a function in one of the threads. Raises ``ThrottledError`` when too many wait, and the function's
        errors.
        """
        pending_max = self._pool.threads + self._waiting_max
        if self._pending >= pending_max:
            self._refused += 1
            raise ThrottledError(
                f"{self._pending} reads from the remote store are pending, and {pending_max} is the maximum "
                "(remote.log.reader.threads, remote.log.reader.max.pending.tasks): try again later"
            )
        self._pending += 1
        try:
            return await self._pool.run(function)
        finally:
            self._pending -= 1
            self._done += 1

    def resize(self, threads: int) -> None:
        """Set the number of threads. The old threads finish the reads they have."""
        self._pool.resize(threads)

    def statistics(self) -> RemoteReadStatistics:
        """Return the present numbers."""
        return RemoteReadStatistics(self._pending, self._done, self._refused)

    def close(self) -> None:
        """Finish the running reads, and accept no more."""
        self._pool.close(cancel_waiting=True)
