"""Windows of time: how a record's timestamp becomes one or more windows, as data.

Windows are aligned to the epoch, start inclusive, end exclusive (Kafka Streams' ``TimeWindows``). A window is closed
once ``end + grace <= stream time``; what comes later for it is dropped.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TypeAlias

from millrace_streams.errors import TopologyError

Duration: TypeAlias = dt.timedelta | int
"""A length of time: a ``timedelta``, or whole milliseconds."""


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
        if self.grace_ms < 0:
            raise TopologyError(f"grace of {self.grace_ms} ms: must not be negative")
        if self.retention_ms == 0:
            object.__setattr__(self, "retention_ms", self.size_ms + self.grace_ms)
        if self.retention_ms < self.size_ms + self.grace_ms:
            raise TopologyError(
                f"retention of {self.retention_ms} ms is shorter than window and grace "
                f"({self.size_ms + self.grace_ms} ms): open windows would be lost"
            )

    @property
    def tumbling(self) -> bool:
        """Whether each record falls into exactly one window."""
        return self.size_ms == self.advance_ms

    def grace(self, duration: Duration) -> TimeWindows:
        """The same windows, open for late records until ``duration`` after their end."""
        return TimeWindows(size_ms=self.size_ms, advance_ms=self.advance_ms, grace_ms=milliseconds(duration))

    def advance_by(self, duration: Duration) -> TimeWindows:
        """Hopping windows: one starts every ``duration``."""
        return TimeWindows(size_ms=self.size_ms, advance_ms=milliseconds(duration), grace_ms=self.grace_ms)

    def retain(self, duration: Duration) -> TimeWindows:
        """The same windows, their results kept for ``duration`` from the window's start."""
        return TimeWindows(
            size_ms=self.size_ms,
            advance_ms=self.advance_ms,
            grace_ms=self.grace_ms,
            retention_ms=milliseconds(duration),
        )

    def __str__(self) -> str:
        """In words, for ``describe`` and ``explain``."""
        kind = "tumbling" if self.tumbling else f"hopping every {self.advance_ms} ms,"
        return f"{kind} {self.size_ms} ms, grace {self.grace_ms} ms"


def tumbling(size: Duration, *, grace: Duration = 0) -> TimeWindows:
    """Windows side by side: each record is in exactly one."""
    size_ms = milliseconds(size)
    return TimeWindows(size_ms=size_ms, advance_ms=size_ms, grace_ms=milliseconds(grace))


def hopping(size: Duration, *, advance: Duration, grace: Duration = 0) -> TimeWindows:
    """Overlapping windows: one of ``size`` starts every ``advance``."""
    return TimeWindows(size_ms=milliseconds(size), advance_ms=milliseconds(advance), grace_ms=milliseconds(grace))


def milliseconds(duration: Duration) -> int:
    """A duration in whole milliseconds. Raises ``TopologyError`` when it is finer than that."""
    if isinstance(duration, dt.timedelta):
        whole, rest = divmod(duration, dt.timedelta(milliseconds=1))
        if rest:
            raise TopologyError(f"{duration} is not a whole number of milliseconds")
        return whole
    return duration
