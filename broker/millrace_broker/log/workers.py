"""Threads that work at a log's partitions in the background, and those who must keep them off one.

Invariants:

- What has a key (a partition, as a rule) is worked at by one thread at a time, and by none while it is ``paused``.
- Whoever works at something looks at ``must_end`` every now and then, and breaks off when it says so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Workers(Generic[Key]):
    """Threads, and which of them is at what. Who changes what there is to do holds ``changed`` and notifies it."""

    def __init__(self, name: str, threads: int) -> None:
        """``name`` is the threads'."""
        self.changed: Final = threading.Condition()
        self._name: Final = name
        self._count = threads
        self._threads: list[threading.Thread] = []
        self._in_progress: dict[Key, bool] = {}
        """What is worked at, and whether that is to end."""
        self._paused: dict[Key, int] = {}
        self._is_stopping = False

    # --- life ----------------------------------------------------------------------------------------------

    def start(self, run: Callable[[], None]) -> None:
        """Run a function in each thread; it returns when ``is_stopping``."""
        for number in range(self._count):
            thread = threading.Thread(target=run, name=f"millrace-{self._name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Break off what is worked at and wait for the threads to end. Stopping again does nothing."""
        with self.changed:
            self._is_stopping = True
            self._in_progress = dict.fromkeys(self._in_progress, True)
            self.changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def resize(self, threads: int) -> None:
        """Have another number of threads from the next ``start`` on, after a ``stop``."""
        assert not self._threads, "nobody works while their number changes"
        self._count = threads
        self._is_stopping = False

    @property
    def is_stopping(self) -> bool:
        """Whether nothing is to be begun any more."""
        return self._is_stopping

    def wait(self, seconds: float) -> None:
        """Wait until it is over or something has changed."""
        with self.changed:
            if not self._is_stopping:
                self.changed.wait(seconds)

    # --- work ----------------------------------------------------------------------------------------------

    @property
    def in_progress(self) -> tuple[Key, ...]:
        """What is worked at now."""
        with self.changed:
            return tuple(self._in_progress)

    def is_free(self, key: Key) -> bool:
        """Whether nobody is at something, and nobody keeps the threads off it."""
        with self.changed:
            return key not in self._in_progress and key not in self._paused

    def take(self, key: Key) -> bool:
        """Be the one who works at something, until ``done``; False when it is not free, or all is to end."""
        with self.changed:
            if self._is_stopping or not self.is_free(key):
                return False
            self._in_progress[key] = False
            return True

    def must_end(self, key: Key) -> bool:
        """Whether the work that was taken is to be broken off."""
        return self._in_progress[key]

    def done(self, key: Key) -> None:
        """The work that was taken has ended."""
        with self.changed:
            del self._in_progress[key]
            self.changed.notify_all()

    # --- keeping off ---------------------------------------------------------------------------------------

    def break_off(self, key: Key) -> None:
        """Have it broken off, where somebody is at it, without waiting for that."""
        with self.changed:
            if key in self._in_progress:
                self._in_progress[key] = True
                self.changed.notify_all()

    @contextlib.contextmanager
    def paused(self, key: Key) -> Iterator[None]:
        """Keep off something: who is at it breaks off first."""
        with self.changed:
            self._paused[key] = self._paused.get(key, 0) + 1
            self.break_off(key)
            while key in self._in_progress:
                self.changed.wait()
        try:
            yield
        finally:
            with self.changed:
                self._paused[key] -= 1
                if not self._paused[key]:
                    del self._paused[key]
                self.changed.notify_all()
