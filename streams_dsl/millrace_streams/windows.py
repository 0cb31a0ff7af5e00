"""Time windows as data: the assignment of a record's timestamp to windows.

Tumbling and hopping windows are aligned to the epoch, start inclusive, end exclusive (Kafka Streams' ``TimeWindows``).
A sliding window ends with a record or begins right after one, both bounds inclusive. A session holds records whose
distance is at most a gap. An unlimited window has no end. A time window is closed once ``end + grace <= stream time``;
later records for it are dropped.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any, Final, NamedTuple, TypeAlias

from millrace_streams.errors import TopologyError

Duration: TypeAlias = dt.timedelta | int
"""A length of time: a ``timedelta``, or whole milliseconds."""

FOREVER_MS: Final = 2**63 - 1
"""End of a window without end, and the largest end of any window, as in Kafka Streams."""


LAST_INSTANT_MS: Final = FOREVER_MS // 1000
"""The last instant of a timestamp column in microseconds: in January of the year 294247."""


class Windowed(NamedTuple):
    """Key of a windowed table (Kafka's ``Windowed``).

    ``start`` and ``end`` are the bounds of the window in ms.
    """

    key: Any
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindows:
    """Tumbling or hopping windows (Kafka's ``TimeWindows``).

    A window of ``size_ms`` starts every ``advance_ms``. The windows are tumbling if both are equal, otherwise hopping.
    ``retention_ms`` is the time for which the store keeps a window's result, from the window's start to the start of
    the newest window. The minimum and default last until the window closes.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int = 0
    retention_ms: int = 0

    def __post_init__(self) -> None:
        """Check the lengths. Raises ``TopologyError``."""
        if self.size_ms <= 0:
            raise TopologyError(f"windows of {self.size_ms} ms: the size must be positive")
        if not 0 < self.advance_ms <= self.size_ms:
            raise TopologyError(
                f"windows of {self.size_ms} ms advancing by {self.advance_ms} ms: the advance must be positive and at "
                "most the size, or some records would belong to no window"
            )
        _check_grace(self.grace_ms)
        object.__setattr__(self, "retention_ms", _retention(self.retention_ms, self.size_ms + self.grace_ms))

    @property
    def tumbling(self) -> bool:
        """True if each record belongs to exactly one window."""
        return self.size_ms == self.advance_ms

    def grace(self, duration: Duration) -> TimeWindows:
        """Return the same windows, which accept late records until ``duration`` after their end."""
        # A default retention follows the grace.
        chosen = self.retention_ms > self.size_ms + self.grace_ms
        return replace(self, grace_ms=milliseconds(duration), retention_ms=self.retention_ms if chosen else 0)

    def advance_by(self, duration: Duration) -> TimeWindows:
        """Return hopping windows, of which one starts every ``duration``."""
        return replace(self, advance_ms=milliseconds(duration))

    def retain(self, duration: Duration) -> TimeWindows:
        """Return the same windows, whose results are kept for ``duration`` from the window's start."""
        return replace(self, retention_ms=milliseconds(duration))

    def __str__(self) -> str:
        """Return a description for ``describe`` and ``explain``."""
        kind = "tumbling" if self.tumbling else f"hopping every {self.advance_ms} ms,"
        return f"{kind} {self.size_ms} ms, grace {self.grace_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindows:
    """Sliding windows (Kafka's ``SlidingWindows``, KIP-450).

    A window has records at most ``difference_ms`` apart. There is one window for each set of such records.
    """

    difference_ms: int
    grace_ms: int = 0
    retention_ms: int = 0

    def __post_init__(self) -> None:
        """Check the lengths. Raises ``TopologyError``."""
        if self.difference_ms < 0:
            raise TopologyError(f"sliding windows of {self.difference_ms} ms: must not be negative")
        _check_grace(self.grace_ms)
        # As in Kafka Streams, because a left window may reach back by the window's length once more.
        object.__setattr__(self, "retention_ms", _retention(self.retention_ms, 2 * self.difference_ms + self.grace_ms))

    def retain(self, duration: Duration) -> SlidingWindows:
        """Return the same windows, whose results are kept for ``duration`` from the window's start."""
        return replace(self, retention_ms=milliseconds(duration))

    def __str__(self) -> str:
        """Return a description for ``describe`` and ``explain``."""
        return f"sliding {self.difference_ms} ms, grace {self.grace_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindows:
    """Session windows (Kafka's ``SessionWindows``).

    A session has records of one key, with at most ``gap_ms`` between neighbours.
    """

    gap_ms: int
    grace_ms: int = 0
    retention_ms: int = 0

    def __post_init__(self) -> None:
        """Check the lengths. Raises ``TopologyError``."""
        if self.gap_ms <= 0:
            raise TopologyError(f"sessions with a gap of {self.gap_ms} ms: the gap must be positive")
        _check_grace(self.grace_ms)
        object.__setattr__(self, "retention_ms", _retention(self.retention_ms, self.gap_ms + self.grace_ms))

    def retain(self, duration: Duration) -> SessionWindows:
        """Return the same sessions, whose results are kept for ``duration`` from the session's end."""
        return replace(self, retention_ms=milliseconds(duration))

    def __str__(self) -> str:
        """Return a description for ``describe`` and ``explain``."""
        return f"sessions with a gap of {self.gap_ms} ms, grace {self.grace_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlimitedWindows:
    """Single window per key without an end (Kafka's ``UnlimitedWindows``).

    The window begins at ``start_ms``. No record is late, but earlier records are left out.
    """

    start_ms: int = 0
    grace_ms: int = 0
    retention_ms: int = FOREVER_MS

    def __post_init__(self) -> None:
        """Check the start. Raises ``TopologyError``."""
        if self.start_ms < 0:
            raise TopologyError(f"an unlimited window from {self.start_ms} ms: must not be negative")

    def retain(self, duration: Duration) -> UnlimitedWindows:
        """Return the same window, because an unlimited window is kept forever."""
        return self

    def __str__(self) -> str:
        """Return a description for ``describe`` and ``explain``."""
        return f"unlimited from {self.start_ms} ms"


Windows: TypeAlias = TimeWindows | SlidingWindows | SessionWindows | UnlimitedWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinWindows:
    """Join window of two streams by timestamp (Kafka's ``JoinWindows``).

    Two records join if ``left - before_ms <= right <= left + after_ms``.
    """

    before_ms: int
    after_ms: int
    grace_ms: int = 0

    def __post_init__(self) -> None:
        """Check the lengths. Raises ``TopologyError``."""
        if self.before_ms + self.after_ms < 0:
            raise TopologyError(
                f"a join window from {-self.before_ms} to {self.after_ms} ms is empty: before + after must not be "
                "negative"
            )
        _check_grace(self.grace_ms)

    @property
    def retention_ms(self) -> int:
        """Time for which the records of either side are kept for the other side."""
        return min(self.before_ms + self.after_ms + self.grace_ms, FOREVER_MS)

    def before(self, duration: Duration) -> JoinWindows:
        """Return the same window, with the right record at most ``duration`` before the left one."""
        return replace(self, before_ms=milliseconds(duration))

    def after(self, duration: Duration) -> JoinWindows:
        """Return the same window, with the right record at most ``duration`` after the left one."""
        return replace(self, after_ms=milliseconds(duration))

    def __str__(self) -> str:
        """Return a description for ``describe`` and ``explain``."""
        return f"right {self.before_ms} ms before to {self.after_ms} ms after left, grace {self.grace_ms} ms"


def tumbling(size: Duration, *, grace: Duration = 0) -> TimeWindows:
    """Make adjacent windows: each record is in exactly one."""
    size_ms = milliseconds(size)
    return TimeWindows(size_ms=size_ms, advance_ms=size_ms, grace_ms=milliseconds(grace))


def hopping(size: Duration, *, advance: Duration, grace: Duration = 0) -> TimeWindows:
    """Make overlapping windows: one of ``size`` starts every ``advance``."""
    return TimeWindows(size_ms=milliseconds(size), advance_ms=milliseconds(advance), grace_ms=milliseconds(grace))


def sliding(difference: Duration, *, grace: Duration = 0) -> SlidingWindows:
    """Make windows of records at most ``difference`` apart."""
    return SlidingWindows(difference_ms=milliseconds(difference), grace_ms=milliseconds(grace))


def sessions(gap: Duration, *, grace: Duration = 0) -> SessionWindows:
    """Make sessions that end after ``gap`` without a record."""
    return SessionWindows(gap_ms=milliseconds(gap), grace_ms=milliseconds(grace))


def unlimited(start: Duration = 0) -> UnlimitedWindows:
    """Make one window from ``start`` (since the epoch) without end."""
    return UnlimitedWindows(start_ms=milliseconds(start))


def within(difference: Duration, *, grace: Duration = 0) -> JoinWindows:
    """Make a join window of records at most ``difference`` apart, in either order."""
    difference_ms = milliseconds(difference)
    return JoinWindows(before_ms=difference_ms, after_ms=difference_ms, grace_ms=milliseconds(grace))


def milliseconds(duration: Duration) -> int:
    """Convert a duration to whole milliseconds. Raises ``TopologyError`` for a finer one, or an invalid argument."""
    if isinstance(duration, dt.timedelta):
        whole, rest = divmod(duration, dt.timedelta(milliseconds=1))
        if rest:
            raise TopologyError(f"{duration} is not a whole number of milliseconds")
        return whole
    if not isinstance(duration, int):
        raise TopologyError(f"{duration!r} is not a length of time: give a timedelta, or whole milliseconds")
    return duration


def length_ms(duration: Duration, what: str) -> int:
    """Convert a duration to milliseconds. Raises ``TopologyError`` as ``milliseconds`` does, and naming ``what`` for a
    negative one.
    """
    length = milliseconds(duration)
    if length < 0:
        raise TopologyError(f"{what} of {length} ms: must not be negative")
    return length


def length_of(window: object) -> int | None:
    """Return the length in ms of all windows of a kind; None if lengths differ, or there is no end."""
    match window:
        case TimeWindows():
            return window.size_ms
        case SlidingWindows():
            return window.difference_ms
    return None


def window_end(start_ms: int, length_ms: int | None) -> int:
    """Return the end of a window; a length of None means that it has no end."""
    return FOREVER_MS if length_ms is None else min(start_ms + length_ms, FOREVER_MS)


def windowed(key: Any, start_ms: int, end_ms: int) -> Windowed:
    """Make the key of a result, with bounds that fit timestamp columns.

    A window that starts after the last instant of timestamps starts there. One that ends after it has no end.
    """
    return Windowed(key, min(start_ms, LAST_INSTANT_MS), end_ms if end_ms <= LAST_INSTANT_MS else FOREVER_MS)


def check_windows(window: object, kinds: UnionType | type, where: str, remedy: str) -> None:
    """Check that windows are of these kinds. Raises ``TopologyError`` naming ``where``."""
    if not isinstance(window, kinds):
        raise TopologyError(f"{where}: {window!r} is not allowed here: {remedy}")


def _check_grace(grace_ms: int) -> None:
    if grace_ms < 0:
        raise TopologyError(f"grace of {grace_ms} ms: must not be negative")


def _retention(retention_ms: int, needed_ms: int) -> int:
    if needed_ms > FOREVER_MS:
        raise TopologyError(f"window and grace of {needed_ms} ms: must be less than 2^63 together")
    if retention_ms == 0:
        return needed_ms
    if retention_ms < needed_ms:
        raise TopologyError(
            f"retention of {retention_ms} ms is shorter than window and grace ({needed_ms} ms): open windows would be "
            "lost"
        )
    return retention_ms
