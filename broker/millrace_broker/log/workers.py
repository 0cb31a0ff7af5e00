"""Background threads for a log's partitions, and their pauses per partition.

Invariants:

- At most one thread works on a key (usually a partition), and none while it is ``paused``.
- Work on a key checks ``must_end`` at intervals, and stops when it is true.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Workers(Generic[Key]):
    """Background threads and their present keys. Code that adds work holds ``changed`` and notifies it."""

    def __init__(self, name: str, threads: int) -> None:
        """``name`` is part of the threads' names."""
        self.changed: Final = threading.Condition()
        self._name: Final = name
        self.count = threads
        """The number of threads."""
        self._threads: list[threading.Thread] = []
        self._in_progress: dict[Key, bool] = {}
        """The keys in work. The value is True if the work must end."""
        self._paused: dict[Key, int] = {}
        self._is_stopping = False

    # --- start and stop ------------------------------------------------------------------------------------

    def start(self, run: Callable[[], None]) -> None:
        """Run a function in each thread; it must return when ``is_stopping``."""
        for number in range(self.count):
            thread = threading.Thread(target=run, name=f"millrace-{self._name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Interrupt all work and wait for the threads to end. Stopping again does nothing."""
        with self.changed:
            self._is_stopping = True
            self._in_progress = dict.fromkeys(self._in_progress, True)
            self.changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def resize(self, threads: int) -> None:
        """Set another number of threads for the next ``start``, after a ``stop``."""
        assert not self._threads, "the number of threads may change only while none of them runs"
        self.count = threads
        self._is_stopping = False

    @property
    def is_stopping(self) -> bool:
        """True if no work may begin any more."""
        return self._is_stopping

    def wait(self, seconds: float) -> None:
        """Wait for the seconds, or until a change is notified."""
        with self.changed:
            if not self._is_stopping:
                self.changed.wait(seconds)

    # --- work ----------------------------------------------------------------------------------------------

    @property
    def in_progress(self) -> tuple[Key, ...]:
        """The keys in work now."""
        with self.changed:
            return tuple(self._in_progress)

    def is_free(self, key: Key) -> bool:
        """Return whether no thread works on a key and the key is not paused."""
        with self.changed:
            return key not in self._in_progress and key not in self._paused

    def take(self, key: Key) -> bool:
        """Take a key for work until ``done``; returns False if it is not free, or all work must end."""
        with self.changed:
            if self._is_stopping or not self.is_free(key):
                return False
            self._in_progress[key] = False
            return True

    def must_end(self, key: Key) -> bool:
        """Return whether the work on a key must end."""
        return self._in_progress[key]

    def done(self, key: Key) -> None:
        """Release a key after its work."""
        with self.changed:
            del self._in_progress[key]
            self.changed.notify_all()

    # --- pauses --------------------------------------------------------------------------------------------

    def break_off(self, key: Key) -> None:
        """Ask the work on a key to end, without waiting for it."""
        with self.changed:
            if key in self._in_progress:
                self._in_progress[key] = True
                self.changed.notify_all()

    @contextlib.contextmanager
    def paused(self, key: Key) -> Iterator[None]:
        """Keep threads from a key; present work on it is interrupted first."""
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
