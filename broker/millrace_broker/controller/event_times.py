"""Durations of controller events, like Kafka's ``EventQueueTimeMs``.

They also match Kafka's rate and time metrics of each event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatistics:
    """Events since the start, by name. ``current`` is the event that is being handled."""

    current: str
    handled: Mapping[str, int]
    seconds: Mapping[str, float]
    waited_s: float
    """The time that all events together spent in the queue."""


class EventTimes:
    """Counters of events. The caller measures the times, in seconds."""

    def __init__(self) -> None:
        self._current = ""
        self._handled: Final[Counter[str]] = Counter()
        self._seconds: Final[dict[str, float]] = {}
        self._waited_s = 0.0

    def begins(self, name: str, waited_s: float) -> None:
        """Count an event that is taken from the queue."""
        self._current = name
        self._waited_s += waited_s

    def ends(self, took_s: float) -> None:
        """Count the end of the current event, whatever its result."""
        self._handled[self._current] += 1
        self._seconds[self._current] = self._seconds.get(self._current, 0.0) + took_s
        self._current = ""

    def statistics(self) -> EventStatistics:
        """Return the present numbers."""
        return EventStatistics(
            current=self._current,
            handled=dict(self._handled),
            seconds=dict(self._seconds),
            waited_s=self._waited_s,
        )
