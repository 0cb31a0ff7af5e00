"""Thread pool whose number of threads changes while it runs.

Invariants

- A function runs once, in a thread of the pool that was current when it was submitted.
- After ``close``, no thread of the pool runs, also none of a pool that was replaced earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_T = TypeVar("_T")


class ResizableThreadPool:
    """Thread pool of a broker, Kafka's ``KafkaRequestHandlerPool``. For the event loop's thread."""

    def __init__(self, threads: int, name: str) -> None:
        """``name`` is the prefix of the names of the threads."""
        self._name: Final = name
        self._replaced: Final[list[ThreadPoolExecutor]] = []
        self.threads = threads
        """The present number of threads."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def run(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        """Run a function in one of the threads."""
        return asyncio.get_running_loop().run_in_executor(self._pool, function)

    def resize(self, threads: int) -> None:
        """Set the number of threads. The replaced threads finish the functions that they have, and end."""
        if threads == self.threads:
            return
        self._pool.shutdown(wait=False)
        self._replaced.append(self._pool)
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=self._name)

    def close(self, *, cancel_waiting: bool = False) -> None:
        """Wait for the functions that were submitted, or only for the running ones, and end all threads."""
        for pool in (*self._replaced, self._pool):
            pool.shutdown(cancel_futures=cancel_waiting)
