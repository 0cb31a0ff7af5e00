"""Windows of time: how a record's timestamp becomes one or more windows, as data.

Tumbling and hopping windows are aligned to the epoch, start inclusive, end exclusive (Kafka Streams' ``TimeWindows``);
a sliding window ends with a record or begins right after one, both bounds inclusive; a session is what lies closer
together than a gap; an unlimited window has no end. A time window is closed once ``end + grace <= stream time``; what
comes later for it is dropped.
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
"""End of a window without end; and of one that would end later, as in Kafka Streams."""


LAST_INSTANT_MS: Final = FOREVER_MS // 1000
"""The last instant that a timestamp column, which counts microseconds, can hold: in January of the year 294247."""


class Windowed(NamedTuple):
    """A key together with its window, both bounds in ms: the key of a windowed table."""

    key: Any
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindows:
    """Windows of ``size_ms``, one starting every ``advance_ms``: tumbling if both are equal, else hopping.

    ``retention_ms`` says how long a window's result is kept in the store: from its start to the newest window's; at
    least until it closes, which is also the default.
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
                "most the size, or records would fall into no window"
            )
        _check_grace(self.grace_ms)
        object.__setattr__(self, "retention_ms", _retention(self.retention_ms, self.size_ms + self.grace_ms))

    @property
    def tumbling(self) -> bool:
        """Whether each record falls into exactly one window."""
        return self.size_ms == self.advance_ms

    def grace(self, duration: Duration) -> TimeWindows:
        """The same windows, open for late records until ``duration`` after their end."""
        # A retention that nobody chose goes with the grace.
        chosen = self.retention_ms > self.size_ms + self.grace_ms
        return replace(self, grace_ms=milliseconds(duration), retention_ms=self.retention_ms if chosen else 0)

    def advance_by(self, duration: Duration) -> TimeWindows:
        """Hopping windows: one starts every ``duration``."""
        return replace(self, advance_ms=milliseconds(duration))

    def retain(self, duration: Duration) -> TimeWindows:
        """The same windows, their results kept for ``duration`` from the window's start."""
        return replace(self, retention_ms=milliseconds(duration))

    def __str__(self) -> str:
        """In words, for ``describe`` and ``explain``."""
        kind = "tumbling" if self.tumbling else f"hopping every {self.advance_ms} ms,"
        return f"{kind} {self.size_ms} ms, grace {self.grace_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindows:
    """Windows of records at most ``difference_ms`` apart, one for each set of such records (KIP-450)."""

    difference_ms: int
    grace_ms: int = 0
    retention_ms: int = 0

    def __post_init__(self) -> None:
        """Check the lengths. Raises ``TopologyError``."""
        if self.difference_ms < 0:
            raise TopologyError(f"sliding windows of {self.difference_ms} ms: must not be negative")
        _check_grace(self.grace_ms)
        # As Kafka Streams: a left window may reach back as far again as the window is long.
        object.__setattr__(self, "retention_ms", _retention(self.retention_ms, 2 * self.difference_ms + self.grace_ms))

    def retain(self, duration: Duration) -> SlidingWindows:
        """The same windows, their results kept for ``duration`` from the window's start."""
        return replace(self, retention_ms=milliseconds(duration))

    def __str__(self) -> str:
        """In words, for ``describe`` and ``explain``."""
        return f"sliding {self.difference_ms} ms, grace {self.grace_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindows:
    """Sessions: records of a key with never more than ``gap_ms`` between one and the next."""

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
        """The same sessions, their results kept for ``duration`` from the session's end."""
        return replace(self, retention_ms=milliseconds(duration))

    def __str__(self) -> str:
        """In words, for ``describe`` and ``explain``."""
        return f"sessions with a gap of {self.gap_ms} ms, grace {self.grace_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlimitedWindows:
    """One window per key, from ``start_ms`` on without end: nothing is ever late, what is earlier is left out."""

    start_ms: int = 0
    grace_ms: int = 0
    retention_ms: int = FOREVER_MS

    def retain(self, duration: Duration) -> UnlimitedWindows:
        """The same: an unlimited window is kept forever."""
        return self

    def __str__(self) -> str:
        """In words, for ``describe`` and ``explain``."""
        return f"unlimited from {self.start_ms} ms"


Windows: TypeAlias = TimeWindows | SlidingWindows | SessionWindows | UnlimitedWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinWindows:
    """Which records of two streams join: ``left - before_ms <= right <= left + after_ms``, by their timestamps."""

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
        """How long either side's records are kept for the other's."""
        return self.before_ms + self.after_ms + self.grace_ms

    def before(self, duration: Duration) -> JoinWindows:
        """The same, with the right record at most ``duration`` before the left one."""
        return replace(self, before_ms=milliseconds(duration))

    def after(self, duration: Duration) -> JoinWindows:
        """The same, with the right record at most ``duration`` after the left one."""
        return replace(self, after_ms=milliseconds(duration))

    def __str__(self) -> str:
        """In words, for ``describe`` and ``explain``."""
        return f"right {self.before_ms} ms before to {self.after_ms} ms after left, grace {self.grace_ms} ms"


def tumbling(size: Duration, *, grace: Duration = 0) -> TimeWindows:
    """Windows side by side: each record is in exactly one."""
    size_ms = milliseconds(size)
    return TimeWindows(size_ms=size_ms, advance_ms=size_ms, grace_ms=milliseconds(grace))


def hopping(size: Duration, *, advance: Duration, grace: Duration = 0) -> TimeWindows:
    """Overlapping windows: one of ``size`` starts every ``advance``."""
    return TimeWindows(size_ms=milliseconds(size), advance_ms=milliseconds(advance), grace_ms=milliseconds(grace))


def sliding(difference: Duration, *, grace: Duration = 0) -> SlidingWindows:
    """Windows of records at most ``difference`` apart."""
    return SlidingWindows(difference_ms=milliseconds(difference), grace_ms=milliseconds(grace))


def sessions(gap: Duration, *, grace: Duration = 0) -> SessionWindows:
    """Sessions that end after ``gap`` without a record."""
    return SessionWindows(gap_ms=milliseconds(gap), grace_ms=milliseconds(grace))


def unlimited(start: Duration = 0) -> UnlimitedWindows:
    """One window from ``start`` (since the epoch) on."""
    return UnlimitedWindows(start_ms=milliseconds(start))


def within(difference: Duration, *, grace: Duration = 0) -> JoinWindows:
    """Records of two streams at most ``difference`` apart, whichever comes first."""
    difference_ms = milliseconds(difference)
    return JoinWindows(before_ms=difference_ms, after_ms=difference_ms, grace_ms=milliseconds(grace))


def milliseconds(duration: Duration) -> int:
    """A duration in whole milliseconds. Raises ``TopologyError`` when it is finer than that, or none."""
    if isinstance(duration, dt.timedelta):
        whole, rest = divmod(duration, dt.timedelta(milliseconds=1))
        if rest:
            raise TopologyError(f"{duration} is not a whole number of milliseconds")
        return whole
    if not isinstance(duration, int):
        raise TopologyError(f"{duration!r} is no length of time: give a timedelta, or whole milliseconds")
    return duration


def length_of(window: object) -> int | None:
    """Return the length in ms that all windows of a kind have; None where each has its own, or no end."""
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
    """Make the key of a result, with the bounds that timestamp columns give it.

    A window that starts after the last instant of timestamps starts there. One that ends after it has no end.
    """
    return Windowed(key, min(start_ms, LAST_INSTANT_MS), end_ms if end_ms <= LAST_INSTANT_MS else FOREVER_MS)


def check_windows(window: object, kinds: UnionType | type, where: str, remedy: str) -> None:
    """Refuse what are no windows of these kinds. Raises ``TopologyError`` naming ``where``."""
    if not isinstance(window, kinds):
        raise TopologyError(f"{where}: {window!r} are no such windows: {remedy}")


def _check_grace(grace_ms: int) -> None:
    if grace_ms < 0:
        raise TopologyError(f"grace of {grace_ms} ms: must not be negative")


def _retention(retention_ms: int, needed_ms: int) -> int:
    if retention_ms == 0:
        return needed_ms
    if retention_ms < needed_ms:
        raise TopologyError(
            f"retention of {retention_ms} ms is shorter than window and grace ({needed_ms} ms): open windows would be "
            "lost"
        )
    return retention_ms
