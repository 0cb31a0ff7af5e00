"""A limit on the bytes a second that all threads of one kind read and write together: cleaning, or copying."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

_BURST_S: Final = 0.1
"""So much may be used at once: waiting more often than that costs more than it evens out."""


class Throttle:
    """Makes those who use more than ``bytes_per_second`` wait.

    ``wait`` is called with the seconds to wait, and may return early when the work has to end.
    """

    def __init__(
        self, bytes_per_second: float, monotonic: Callable[[], float], wait: Callable[[float], object]
    ) -> None:
        self._bytes_per_second: Final = bytes_per_second
        self._monotonic: Final = monotonic
        self._wait: Final = wait
        self._lock: Final = threading.Lock()
        self._free_from = monotonic()

    def use(self, size_bytes: int) -> float:
        """Account for bytes that were read or written, and wait if that was too many; returns the seconds waited."""
        with self._lock:
            now = self._monotonic()
            self._free_from = max(self._free_from, now - _BURST_S) + size_bytes / self._bytes_per_second
            behind_s = self._free_from - now
        if behind_s <= 0:
            return 0.0
        self._wait(behind_s)
        return behind_s
