"""Threads for background calls, each of which blocks its thread.

grpc's own futures cost twice as much. Their thread ends when no call is in flight, so that a client with sequential
calls starts a thread for each.

Invariants:

- Work starts at once, in an idle thread or in a new one, so that long calls (a fetch that waits) delay no other.
- Threads end with ``close``; a thread in a call ends after that call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)


class CallThreads:
    """Threads for calls. Thread safe.

    There are as many threads as calls were ever in flight at a time.
    """

    def __init__(self, name: str) -> None:
        """Create the threads' pool; ``name`` is the prefix of their names."""
        self._name = name
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._idle = 0
        """Number of waiting threads minus the queued work."""
        self._is_closed = False

    def start(self, work: Callable[[], None]) -> bool:
        """Run ``work`` in a thread; returns false without running it after ``close``. ``work`` handles its own
        errors.
        """
        with self._lock:
            if self._is_closed:
                return False
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()
            self._work.put(work)
            return True

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                logger.exception("a callback of a call has failed")
            del work  # an idle thread keeps no objects alive
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Start no more work; threads end after their current work."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for _ in range(self._threads):
                self._work.put(None)
