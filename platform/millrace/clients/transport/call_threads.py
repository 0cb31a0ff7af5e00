"""Threads in which calls are made that nobody waits for: each is a plain call that blocks its thread.

grpc's own futures would do the same at twice the cost: the thread that serves them ends when nothing is under way, so
that a client that sends one thing after another starts a thread for each.

Invariants:

- Work is begun at once, in an idle thread or in a new one: calls that take long (a fetch that waits for records) keep
  none waiting.
- Threads end with ``close``; one that is in a call then ends with that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)


class CallThreads:
    """Threads for calls, as many as were ever under way at a time. Thread safe."""

    def __init__(self, name: str) -> None:
        """``name`` is the threads'."""
        self._name = name
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._idle = 0
        """Threads that wait, less the work that they will find."""
        self._is_closed = False

    def start(self, work: Callable[[], None]) -> bool:
        """Have ``work`` done in a thread; false, and it is not, once closed. It deals with its errors itself."""
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
                logger.exception("what was to follow a call has failed")
            del work  # an idle thread keeps nothing alive
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Start nothing any more; threads end when they have done what they are at."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for _ in range(self._threads):
                self._work.put(None)
