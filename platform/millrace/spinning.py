"""Looking again and again, for a moment, instead of sleeping: for events that are as good as there.

A thread that sleeps for a fifth of a millisecond is woken late, on a processor that has gone to sleep as well: a tenth
of an unbatched round trip. So clients look for answers, and brokers for requests. Where processors are wanted by
others, who looks in vain only takes time from those whom it waits for. So it is done

- by one thread of a process at a time, on machines with several processors;
- where the last events came within that time, which those of a busy machine do not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

_WEIGHT: Final = 0.25
"""Of the last wait in what is taken for typical."""

_one_at_a_time: Final = threading.Lock()
_HAS_PROCESSORS: Final = len(os.sched_getaffinity(0)) > 1

EventsT = TypeVar("EventsT", bound=Sequence[object])


class Spinning:
    """Waits for events, of which the first ``spin_s`` seconds not asleep. For one thread at a time."""

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
        """The events that are there within ``timeout_s``, if any. ``poll`` waits for them for so many milliseconds."""
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
        # One that was long, because nothing was to come, says little of the next.
        took_s = min(self._monotonic() - started, 2 * self._spin_s)
        self._typical_s += (took_s - self._typical_s) * _WEIGHT
        return events
