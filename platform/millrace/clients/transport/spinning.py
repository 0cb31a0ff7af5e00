"""Looking again and again, for a moment, instead of sleeping: for answers that are as good as there.

A thread that sleeps for a fifth of a millisecond is woken late, on a processor that has gone to sleep as well: a tenth
of an unbatched round trip. Where processors are wanted by others, who looks in vain only takes time from those
whom it waits for. So it is done

- by one thread of a process at a time, on machines with several processors;
- where the last answers came within that time, which those of a busy machine do not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

SPIN_S: Final = 0.0006
"""A broker that has nothing else to do answers a small call in half of it."""
_WEIGHT: Final = 0.25
"""Of the last wait in what is taken for typical."""

_one_at_a_time: Final = threading.Lock()
_HAS_PROCESSORS: Final = len(os.sched_getaffinity(0)) > 1

Poll = Callable[[float], list[tuple[int, int]]]
"""``select.poll().poll``: waits so many milliseconds for events."""


class Spinning:
    """Waits for events. For one thread at a time."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, *, has_processors: bool = _HAS_PROCESSORS
    ) -> None:
        self._monotonic = monotonic
        self._has_processors = has_processors
        self._typical_s = 0.0

    def wait(self, poll: Poll, timeout_s: float) -> list[tuple[int, int]]:
        """The events that are there within ``timeout_s``, if any."""
        started = self._monotonic()
        events = poll(0)
        if not events:
            if self._has_processors and self._typical_s < SPIN_S and _one_at_a_time.acquire(blocking=False):
                try:
                    until = started + min(SPIN_S, timeout_s)
                    while not (events := poll(0)) and self._monotonic() < until:
                        pass
                finally:
                    _one_at_a_time.release()
            if not events:
                left_s = started + timeout_s - self._monotonic()
                events = poll(max(left_s, 0.0) * 1000 + 1)
        # One that was long, because nothing was to come, says little of the next.
        took_s = min(self._monotonic() - started, 2 * SPIN_S)
        self._typical_s += (took_s - self._typical_s) * _WEIGHT
        return events
