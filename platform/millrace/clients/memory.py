"""The bound on what a producer holds that the broker has not acknowledged yet."""

from __future__ import annotations

import threading

from millrace.errors import BufferExhaustedError


class BufferMemory:
    """Counts bytes up to a limit. Thread safe. One that asks while nothing is held gets what it asks for."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._condition = threading.Condition()

    @property
    def used_bytes(self) -> int:
        """Bytes held now."""
        return self._used_bytes

    def acquire(self, size_bytes: int, timeout_s: float) -> None:
        """Wait until there is room and take it.

        Raises ``BufferExhaustedError`` when there is none within ``timeout_s`` (``max.block.ms``).
        """
        with self._condition:
            if not self._condition.wait_for(lambda: self._has_room(size_bytes), timeout_s):
                raise BufferExhaustedError(
                    f"{self._used_bytes} bytes still wait to be acknowledged (buffer.memory={self._limit_bytes}) after "
                    f"max.block.ms={timeout_s * 1000:.0f}: the broker is slow or away: raise one of the two, or send "
                    "less"
                )
            self._used_bytes += size_bytes

    def _has_room(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self._limit_bytes

    def take(self, size_bytes: int) -> None:
        """Take without waiting: what is held already and only changes its form."""
        with self._condition:
            self._used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Give back."""
        with self._condition:
            self._used_bytes -= size_bytes
            self._condition.notify_all()
