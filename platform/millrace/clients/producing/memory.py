"""Limit of unacknowledged bytes in a producer (``buffer.memory``; Kafka's ``BufferPool``).

Invariants: reserved bytes never exceed the limit, with two exceptions. One request larger than the whole limit is
granted alone, and ``take`` counts bytes that only change their form. Waiters are served in their order, so that small
requests never starve a large one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from millrace.errors import BufferExhaustedError


class NoRoomError(BufferExhaustedError):
    """Refusal of a reservation to a caller that must not wait.

    Call ``reserved`` when memory was reserved later.
    """

    def __init__(self, size_bytes: int, reserved: Callable[[int], None], message: str) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes
        self.reserved = reserved


class Waiter:
    """Waiter for memory; ``granted`` says whether it has the memory."""

    __slots__ = ("granted", "size_bytes", "wake")

    def __init__(self, size_bytes: int, wake: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self.wake = wake
        self.granted = False


class BufferMemory:
    """Byte counter with a limit. Thread safe. If nothing is reserved, any request is granted.

    ``on_wait`` is called when a caller begins to wait, so that the sender sends the ready batches.
    """

    def __init__(self, limit_bytes: int, on_wait: Callable[[], None] = lambda: None) -> None:
        self._limit_bytes = limit_bytes
        self._on_wait = on_wait
        self._used_bytes = 0
        self._lock = threading.Lock()
        self._waiters: deque[Waiter] = deque()

    @property
    def used_bytes(self) -> int:
        """Reserved bytes."""
        return self._used_bytes

    @property
    def is_exhausted(self) -> bool:
        """True if a caller waits for memory."""
        return bool(self._waiters)

    def try_acquire(self, size_bytes: int) -> bool:
        """Reserve memory if it is available and no other caller waits."""
        with self._lock:
            if self._waiters or not self._has_room(size_bytes):
                return False
            self._used_bytes += size_bytes
            return True

    def acquire(self, size_bytes: int, timeout_s: float) -> None:
        """Wait until memory is available and reserve it.

        Raises ``BufferExhaustedError`` if none is available within ``timeout_s`` (``max.block.ms``); 0 does not wait.
        """
        if self.try_acquire(size_bytes):
            return
        if timeout_s > 0:
            served = threading.Event()
            waiter = self.acquire_later(size_bytes, served.set)
            try:
                served.wait(timeout_s)
            except BaseException:  # Ctrl-C: release memory that was granted meanwhile
                if self.withdraw(waiter):
                    self.release(size_bytes)
                raise
            if self.withdraw(waiter):
                return
        raise BufferExhaustedError(self.exhausted_message(timeout_s))

    def exhausted_message(self, timeout_s: float) -> str:
        """Return the error message after a vain wait of ``timeout_s``."""
        return (
            f"{self._used_bytes} bytes are not acknowledged yet (buffer.memory={self._limit_bytes}) after "
            f"max.block.ms={timeout_s * 1000:.0f}: the broker is slow or does not answer: raise one of the "
            "two options, or send less"
        )

    def acquire_later(self, size_bytes: int, wake: Callable[[], None]) -> Waiter:
        """Queue for memory; ``wake`` is called, from any thread, once it is granted. Cancel with ``withdraw``."""
        waiter = Waiter(size_bytes, wake)
        with self._lock:
            self._waiters.append(waiter)
            granted = self._grant()
        self._wake(granted)
        if not waiter.granted:
            self._on_wait()
        return waiter

    def withdraw(self, waiter: Waiter) -> bool:
        """Stop waiting; returns true if the memory was granted, and then belongs to the caller."""
        granted: list[Waiter] = []
        with self._lock:
            if not waiter.granted:
                self._waiters.remove(waiter)
                granted = self._grant()
        self._wake(granted)
        return waiter.granted

    def take(self, size_bytes: int) -> None:
        """Count bytes without waiting, for data that already counts and only changes its form."""
        with self._lock:
            self._used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Release memory."""
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
