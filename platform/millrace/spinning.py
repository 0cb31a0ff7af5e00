"""Busy-waiting for a short time before sleeping, for events that arrive soon.

A thread that sleeps for a fifth of a millisecond is woken late, because the processor may sleep as well. That costs a
tenth of an unbatched round trip. So clients spin for responses, and brokers for requests. On a busy machine a
spinning thread takes processor time from the threads for which it waits. So spinning is limited

- to one thread of a process at a time, on machines with several processors;
- to times when recent events came within the spin time, which is not so on a busy machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from millrace.processors import processor_count

_WEIGHT: Final = 0.25
"""Weight of the last wait in the typical wait."""

_one_at_a_time: Final = threading.Lock()
_HAS_PROCESSORS: Final = processor_count() > 1

EventsT = TypeVar("EventsT", bound=Sequence[object])


class Spinning:
    """Wait for events that spins for the first ``spin_s`` seconds. For one thread at a time."""

    def __init__(
        self,
        spin_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        has_processors: bool = _HAS_PROCESSORS,
    ) -> None:
        self._spin_s = spin_s
        self._monotonic = monotonic
        self._has_processors = has_processors
        self._typical_s = 0.0

    def wait(self, poll: Callable[[float | None], EventsT], timeout_s: float | None) -> EventsT:
        """Return the events within ``timeout_s``, if any. ``poll`` waits for the given number of milliseconds."""
        started = self._monotonic()
        events = poll(0)
        if not events:
            if self._has_processors and self._typical_s < self._spin_s and _one_at_a_time.acquire(blocking=False):
                try:
                    until = started + (self._spin_s if timeout_s is None else min(self._spin_s, timeout_s))
                    while not (events := poll(0)) and self._monotonic() < until:
                        pass
                finally:
                    _one_at_a_time.release()
            if not events:
                left_s = None if timeout_s is None else max(started + timeout_s - self._monotonic(), 0.0)
                events = poll(None if left_s is None else left_s * 1000)
        # Limit the weight of a long wait, because it only means that nothing was sent.
        took_s = min(self._monotonic() - started, 2 * self._spin_s)
        self._typical_s += (took_s - self._typical_s) * _WEIGHT
        return events
