"""Time, as the broker sees it: passed in, so that tests and simulations can run on a clock of their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the broker's parts take the time from."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970; may jump, also backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back. For intervals and deadlines."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()
