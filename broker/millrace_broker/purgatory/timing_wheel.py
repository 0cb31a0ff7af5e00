"""Hierarchical timing wheel, Kafka's ``TimingWheel``.

Its cost does not depend on the number of timers. The first wheel has a bucket for each of the next ``wheel_size``
milliseconds. The second wheel has a bucket for each turn of the first, and so on. A timer goes into the bucket of its
deadline in the first wheel whose range includes it. When a bucket of a higher wheel is due, its timers move to lower
wheels, at most once per wheel. Non-empty buckets are in a heap, so that no wheel turns while nothing is due.

Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 7; Kafka's ``TimingWheel``.

Invariants:

- A pending entry is in exactly one bucket, which is in the heap under its due time.
- ``now_ms`` only grows. An entry expires when the wheel is at or after its deadline, never before.
- Entries expire in the order of their deadlines. Entries of the same millisecond expire in an unspecified order, which
  is the same in every run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

_TICK_MS: Final = 1
DEFAULT_WHEEL_SIZE: Final = 256


class TimerEntry:
    """Entry of an action in the wheel, Kafka's ``TimerTaskEntry``.

    The deadline is in ms of the wheel's clock. The action runs once unless the entry is cancelled.
    """

    __slots__ = ("_action", "_bucket", "_is_over", "deadline_ms")

    def __init__(self, deadline_ms: int, action: Callable[[], None]) -> None:
        self.deadline_ms: Final = deadline_ms
        self._action: Final = action
        self._bucket: _Bucket | None = None
        self._is_over = False

    @property
    def is_pending(self) -> bool:
        """True if the entry waits in a wheel."""
        return self._bucket is not None

    def run(self) -> None:
        """Run the action, unless it ran or was cancelled before."""
        if not self._is_over:
            self._is_over = True
            self._action()

    def cancel(self) -> bool:
        """Cancel the action. Return False if it ran or was cancelled before."""
        if self._is_over:
            return False
        self._is_over = True
        if self._bucket is not None:
            self._bucket.remove(self)
        return True


class _Bucket:
    """Entries of one slot of one wheel. ``is_in_heap`` says whether the heap has it under its due time."""

    __slots__ = ("_counter", "_entries", "is_in_heap")

    def __init__(self, counter: _Counter) -> None:
        self._counter: Final = counter
        self._entries: dict[TimerEntry, None] = {}  # an ordered set, so that a seed replays a run
        self.is_in_heap = False

    def add(self, entry: TimerEntry) -> None:
        self._entries[entry] = None
        entry._bucket = self
        self._counter.pending += 1

    def remove(self, entry: TimerEntry) -> None:
        self._entries.pop(entry, None)
        entry._bucket = None
        self._counter.pending -= 1

    def empty(self) -> list[TimerEntry]:
        entries, self._entries = list(self._entries), {}
        for entry in entries:
            entry._bucket = None
        self._counter.pending -= len(entries)
        return entries


class _Counter:
    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = 0


class TimingWheel:
    """Timers by deadline. The wheel has no clock; ``advance`` sets its time."""

    def __init__(self, start_ms: int, *, wheel_size: int = DEFAULT_WHEEL_SIZE) -> None:
        """Create a wheel whose time is ``start_ms``."""
        self._counter = _Counter()
        self._due: list[tuple[int, int, _Bucket]] = []
        self._wheel = _Wheel(start_ms, _TICK_MS, wheel_size, self._counter, self._due)
        self._now_ms = start_ms

    def __len__(self) -> int:
        """Return the number of pending entries."""
        return self._counter.pending

    @property
    def now_ms(self) -> int:
        """The time to which the wheel was last advanced."""
        return self._now_ms

    def add(self, entry: TimerEntry) -> bool:
        """Start a timer. Return False, without adding it, if its deadline has passed."""
        assert not entry.is_pending, "a timer is in one wheel at a time"
        return self._wheel.add(entry)

    def next_due_ms(self) -> int | None:
        """Return the next time to advance to, before which no entry expires. None while nothing is pending."""
        if not self._counter.pending:
            # All entries in the heap's buckets are cancelled.
            for _, _, bucket in self._due:
                bucket.is_in_heap = False
            self._due.clear()
        return self._due[0][0] if self._due else None

    def advance(self, now_ms: int) -> list[TimerEntry]:
        """Turn to ``now_ms``. Return the expired entries, which the caller runs."""
        expired: list[TimerEntry] = []
        while self._due and self._due[0][0] <= now_ms:
            due_ms, _, bucket = heapq.heappop(self._due)
            self._turn_to(due_ms)
            bucket.is_in_heap = False
            # An entry moves to a lower wheel, or expires from the lowest.
            expired += [entry for entry in bucket.empty() if not self._wheel.add(entry)]
        self._turn_to(now_ms)
        return expired

    def _turn_to(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)
        wheel: _Wheel | None = self._wheel
        while wheel is not None:
            wheel.turn_to(self._now_ms)
            wheel = wheel.above


class _Wheel:
    """One wheel, with the higher wheel for deadlines beyond its range."""

    __slots__ = ("_buckets", "_counter", "_due", "_now_ms", "_reach_ms", "_size", "_tick_ms", "above")

    def __init__(
        self, now_ms: int, tick_ms: int, size: int, counter: _Counter, due: list[tuple[int, int, _Bucket]]
    ) -> None:
        self._tick_ms: Final = tick_ms
        self._size: Final = size
        self._reach_ms: Final = tick_ms * size
        self._counter: Final = counter
        self._due: Final = due
        self._buckets: Final = [_Bucket(counter) for _ in range(size)]
        self._now_ms = now_ms - now_ms % tick_ms
        self.above: _Wheel | None = None

    def turn_to(self, now_ms: int) -> None:
        self._now_ms = now_ms - now_ms % self._tick_ms

    def add(self, entry: TimerEntry) -> bool:
        deadline_ms = entry.deadline_ms
        if deadline_ms < self._now_ms + self._tick_ms:
            return False
        if deadline_ms >= self._now_ms + self._reach_ms:
            if self.above is None:
                self.above = _Wheel(self._now_ms, self._reach_ms, self._size, self._counter, self._due)
            return self.above.add(entry)
        tick = deadline_ms // self._tick_ms
        bucket = self._buckets[tick % self._size]
        bucket.add(entry)
        if not bucket.is_in_heap:
            bucket.is_in_heap = True
            heapq.heappush(self._due, (tick * self._tick_ms, self._tick_ms, bucket))
        return True
