"""Broker's time source, passed in so that tests can replace it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time source of the broker's parts."""

    def now_ms(self) -> int:
        """Return wall-clock time in milliseconds since 1970. It may jump, also backwards."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some moment. The value never decreases; use it for intervals and deadlines."""
        ...


def monotonic_ms(clock: Clock) -> int:
    """Return the clock's ``monotonic`` in whole milliseconds."""
    return int(clock.monotonic() * 1000)


class SystemClock:
    """Clock of the machine."""

    def now_ms(self) -> int:
        """Return wall-clock time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """Seconds since some moment. The value never decreases. Calls are many, so there is no method around it."""
