"""The bound on what a producer holds that the broker has not acknowledged yet.

Invariants: what is held never exceeds the limit, but for one that alone is larger than all of it, and for what only
changes its form (``take``). Those who wait are served in the order in which they came (Kafka's ``BufferPool``): a large
one is not passed by small ones for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from millrace.errors import BufferExhaustedError


class NoRoomError(BufferExhaustedError):
    """There is no room now, and the caller must not wait: ``reserved`` is to be told once there is some."""

    def __init__(self, size_bytes: int, reserved: Callable[[int], None], message: str) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes
        self.reserved = reserved


class Waiter:
    """One that waits for room; ``granted`` says whether it has got it."""

    __slots__ = ("granted", "size_bytes", "wake")

    def __init__(self, size_bytes: int, wake: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self.wake = wake
        self.granted = False


class BufferMemory:
    """Counts bytes up to a limit. Thread safe. One that asks while nothing is held gets what it asks for.

    ``on_wait`` is called when somebody begins to wait: what can be sent should be sent now.
    """

    def __init__(self, limit_bytes: int, on_wait: Callable[[], None] = lambda: None) -> None:
        self._limit_bytes = limit_bytes
        self._on_wait = on_wait
        self._used_bytes = 0
        self._lock = threading.Lock()
        self._waiters: deque[Waiter] = deque()

    @property
    def used_bytes(self) -> int:
        """Bytes held now."""
        return self._used_bytes

    @property
    def is_exhausted(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._waiters)

    def try_acquire(self, size_bytes: int) -> bool:
        """Take room if there is any now, and nobody has waited for longer."""
        with self._lock:
            if self._waiters or not self._has_room(size_bytes):
                return False
            self._used_bytes += size_bytes
            return True

    def acquire(self, size_bytes: int, timeout_s: float) -> None:
        """Wait until there is room and take it.

        Raises ``BufferExhaustedError`` when there is none within ``timeout_s`` (``max.block.ms``); 0 does not wait.
        """
        if self.try_acquire(size_bytes):
            return
        if timeout_s > 0:
            served = threading.Event()
            waiter = self.acquire_later(size_bytes, served.set)
            try:
                served.wait(timeout_s)
            except BaseException:  # Ctrl-C: what was granted meanwhile is not wanted any more
                if self.withdraw(waiter):
                    self.release(size_bytes)
                raise
            if self.withdraw(waiter):
                return
        raise BufferExhaustedError(self.exhausted_message(timeout_s))

    def exhausted_message(self, timeout_s: float) -> str:
        """What somebody is told who has waited for so long in vain."""
        return (
            f"{self._used_bytes} bytes still wait to be acknowledged (buffer.memory={self._limit_bytes}) after "
            f"max.block.ms={timeout_s * 1000:.0f}: the broker is slow or away: raise one of the two, or send less"
        )

    def acquire_later(self, size_bytes: int, wake: Callable[[], None]) -> Waiter:
        """Queue for room; ``wake`` is called, from any thread, once it is granted. Give it up with ``withdraw``."""
        waiter = Waiter(size_bytes, wake)
        with self._lock:
            self._waiters.append(waiter)
            granted = self._grant()
        self._wake(granted)
        if not waiter.granted:
            self._on_wait()
        return waiter

    def withdraw(self, waiter: Waiter) -> bool:
        """Wait no longer; true when the room had been granted, and is now the caller's."""
        granted: list[Waiter] = []
        with self._lock:
            if not waiter.granted:
                self._waiters.remove(waiter)
                granted = self._grant()
        self._wake(granted)
        return waiter.granted

    def take(self, size_bytes: int) -> None:
        """Take without waiting: what is held already and only changes its form."""
        with self._lock:
            self._used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Give back."""
        with self._lock:
            self._used_bytes -= size_bytes
            granted = self._grant()
        self._wake(granted)

    def _has_room(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self._limit_bytes

    def _grant(self) -> list[Waiter]:
        granted = []
        while self._waiters and self._has_room(self._waiters[0].size_bytes):
            waiter = self._waiters.popleft()
            self._used_bytes += waiter.size_bytes
            waiter.granted = True
            granted.append(waiter)
        return granted

    @staticmethod
    def _wake(granted: list[Waiter]) -> None:
        for waiter in granted:
            waiter.wake()
