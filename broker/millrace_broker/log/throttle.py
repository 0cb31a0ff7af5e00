"""A limit on the I/O rate of the cleaner or tiering threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

_BURST_S: Final = 0.1
"""The I/O time that may be used without a wait. Shorter waits would cost more than they gain."""


class Throttle:
    """A limit that makes threads wait when they use more than ``bytes_per_second``.

    ``wait`` is called with the seconds to wait, and may return early when the work has to end.
    """

    def __init__(
        self, bytes_per_second: float, monotonic: Callable[[], float], wait: Callable[[float], object]
    ) -> None:
        self.bytes_per_second: Final = bytes_per_second
        self._monotonic: Final = monotonic
        self._wait: Final = wait
        self._lock: Final = threading.Lock()
        self._free_from = monotonic()

    def use(self, size_bytes: int) -> float:
        """Count bytes that were read or written, and wait if they exceed the limit; returns the seconds waited."""
        with self._lock:
            now = self._monotonic()
            self._free_from = max(self._free_from, now - _BURST_S) + size_bytes / self.bytes_per_second
            behind_s = self._free_from - now
        if behind_s <= 0:
            return 0.0
        self._wait(behind_s)
        return behind_s
