"""A hierarchical timing wheel: starting, stopping and expiring a timer cost the same however many are pending.

The first wheel has a bucket for each of the next ``wheel_size`` milliseconds; the second one a bucket for each turn of
the first, and so on, as many wheels as are needed. A timer goes into the bucket of its deadline in the first
wheel that reaches so far. When a bucket of a higher wheel comes due, its timers move to the wheels below, at most once
for each wheel. Buckets that hold something are in a heap, so that nothing turns while nothing is due.

Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 7; Kafka's ``TimingWheel``.

Invariants:

- A pending entry is in exactly one bucket, which is in the heap under the time at which it comes due.
- ``now_ms`` only grows; an entry is expired when the wheel is at its deadline or after it, never before.
- Entries expire in the order of their deadlines; those of one millisecond in no particular
  order, but the same one in every run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

_TICK_MS: Final = 1
DEFAULT_WHEEL_SIZE: Final = 256


class TimerEntry:
    """A timer: what to do, and when (in ms of the wheel's clock). It runs once, unless it is cancelled before."""

    __slots__ = ("_action", "_bucket", "_is_over", "deadline_ms")

    def __init__(self, deadline_ms: int, action: Callable[[], None]) -> None:
        self.deadline_ms: Final = deadline_ms
        self._action: Final = action
        self._bucket: _Bucket | None = None
        self._is_over = False

    @property
    def is_pending(self) -> bool:
        """Whether it waits in a wheel."""
        return self._bucket is not None

    def run(self) -> None:
        """Do it, unless it was done or cancelled before."""
        if not self._is_over:
            self._is_over = True
            self._action()

    def cancel(self) -> bool:
        """Let it not run; False when it has run, or was cancelled before."""
        if self._is_over:
            return False
        self._is_over = True
        if self._bucket is not None:
            self._bucket.remove(self)
        return True


class _Bucket:
    """The entries of one slot of one wheel."""

    __slots__ = ("_counter", "_entries", "due_ms")

    def __init__(self, counter: _Counter) -> None:
        self._counter: Final = counter
        self._entries: dict[TimerEntry, None] = {}  # a set that keeps its order, so that a seed replays a run
        self.due_ms = -1

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
    """Timers by their deadlines. It has no clock of its own: ``advance`` says what time it is."""

    def __init__(self, start_ms: int, *, wheel_size: int = DEFAULT_WHEEL_SIZE) -> None:
        """``start_ms`` is now."""
        self._counter = _Counter()
        self._due: list[tuple[int, int, _Bucket]] = []
        self._wheel = _Wheel(start_ms, _TICK_MS, wheel_size, self._counter, self._due)
        self._now_ms = start_ms

    def __len__(self) -> int:
        """How many entries are pending."""
        return self._counter.pending

    @property
    def now_ms(self) -> int:
        """The time to which the wheel was last advanced."""
        return self._now_ms

    def add(self, entry: TimerEntry) -> bool:
        """Start a timer; False when its deadline is reached already, and it is not in the wheel then."""
        assert not entry.is_pending, "a timer is in one wheel at a time"
        return self._wheel.add(entry)

    def next_due_ms(self) -> int | None:
        """When to advance next: no entry expires before it. None while nothing is pending."""
        if not self._counter.pending:
            # What is left in the heap has been cancelled.
            for _, _, bucket in self._due:
                bucket.due_ms = -1
            self._due.clear()
        return self._due[0][0] if self._due else None

    def advance(self, now_ms: int) -> list[TimerEntry]:
        """Turn to ``now_ms`` and return what has expired, out of the wheel and to be run by the caller."""
        expired: list[TimerEntry] = []
        while self._due and self._due[0][0] <= now_ms:
            due_ms, _, bucket = heapq.heappop(self._due)
            self._turn_to(due_ms)
            bucket.due_ms = -1
            # Down to a lower wheel, or out of the lowest.
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
    """One wheel, with the one above it for what is beyond its reach."""

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
        if bucket.due_ms < 0:
            bucket.due_ms = tick * self._tick_ms
            heapq.heappush(self._due, (bucket.due_ms, self._tick_ms, bucket))
        return True
