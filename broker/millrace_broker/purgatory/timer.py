"""Timers of the event loop, Kafka's ``SystemTimer``.

The timers are in a timing wheel. One callback of the event loop is scheduled for the wheel's next turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from millrace_broker.purgatory.timing_wheel import TimerEntry, TimingWheel
from millrace_broker.runtime import Clock, monotonic_ms

_LOG: Final = logging.getLogger(__name__)


class Timer:
    """Timer that runs delayed actions in the event loop's thread.

    Only that thread may call the timer.
    """

    def __init__(self, clock: Clock) -> None:
        """Create a timer. Before ``start``, actions run only when its owner calls ``turn``."""
        self._clock: Final = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wheel: Final = TimingWheel(monotonic_ms(self._clock))
        self._armed: asyncio.TimerHandle | None = None
        self._armed_ms = 0
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of pending timers."""
        return len(self._wheel)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run due actions in the event loop from now on."""
        self._loop = loop
        self._arm()

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> TimerEntry:
        """Run ``action`` once after ``delay_ms`` unless the entry is cancelled; at the next turn if the delay is 0."""
        entry = TimerEntry(max(monotonic_ms(self._clock) + delay_ms, self._wheel.now_ms + 1), action)
        if not self._is_closed:
            self._wheel.add(entry)
            self._arm()
        return entry

    def turn(self) -> int:
        """Run the due actions and return their number. A failed action is logged, and the others still run."""
        expired = self._wheel.advance(monotonic_ms(self._clock))
        for entry in expired:
            try:
                entry.run()
            except Exception:  # noqa: BLE001  the other actions are due too
                _LOG.exception("a delayed action failed")
        self._arm()
        return len(expired)

    def close(self) -> None:
        """Stop the timer and drop pending actions, whose callers end them."""
        self._is_closed = True
        self._disarm()

    def _arm(self) -> None:
        due_ms = self._wheel.next_due_ms()
        if self._loop is None or self._is_closed or (self._armed is not None and due_ms == self._armed_ms):
            return
        self._disarm()
        if due_ms is not None:
            # Half a millisecond later, so that rounding does not wake the loop just before the deadline.
            delay_s = max(due_ms - monotonic_ms(self._clock), 0) / 1000 + 0.0005
            self._armed, self._armed_ms = self._loop.call_later(delay_s, self._turn_armed), due_ms

    def _turn_armed(self) -> None:
        self._armed = None
        self.turn()

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
