"""Requests whose content is being received. Stalled ones give way to calls that wait for their memory or place.

Invariants

- No reception gives way while no call waits or is refused. No timer runs then.
- A reception gives way only without progress for ``GIVE_WAY_S``. Progress is ``1/_PROGRESS`` of the memory that it
  holds, so that single bytes do not keep the memory of a large request.
- The reception that stalled first gives way first, and no more of them than the waiting calls need.

This code runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

GIVE_WAY_S: Final = 5.0
"""Time that a reception may be without progress while other calls wait. TCP repeats a lost packet four times before."""
_PROGRESS: Final = 4
_LOOK_S: Final = 0.5
"""Interval of the checks of the receptions while a call waits."""


class Reception(Protocol):
    """Request that is being received."""

    @property
    def received_bytes(self) -> int:
        """Bytes that have arrived; always 0 if the listener does not see them."""
        ...

    @property
    def held_bytes(self) -> int:
        """Memory of the request."""
        ...

    def give_way(self, stalled_s: float) -> None:
        """End the call at once, because it made no progress for ``stalled_s`` seconds."""
        ...


class _Progress:
    """Bytes and time of a reception's last progress."""

    __slots__ = ("bytes", "since_s")

    def __init__(self, received_bytes: int, since_s: float) -> None:
        self.bytes = received_bytes
        self.since_s = since_s


class Receptions:
    """Receptions of one class of calls."""

    def __init__(self, monotonic: Callable[[], float], is_wanted: Callable[[], bool]) -> None:
        """``is_wanted`` tells whether a call waits."""
        self._monotonic: Final = monotonic
        self._is_wanted: Final = is_wanted
        self._progress: Final[dict[Reception, _Progress]] = {}
        self._waiting = 0
        self._next_look: asyncio.Handle | None = None
        self._looked_s = float("-inf")
        self._due_s = 0.0
        self.gave_way = 0
        """Number of receptions that gave way, since the start."""

    def __len__(self) -> int:
        """Return the number of receptions."""
        return len(self._progress)

    def begin(self, reception: Reception) -> None:
        """Add a reception. Its time without progress begins."""
        self._progress[reception] = _Progress(reception.received_bytes, self._monotonic())

    def end(self, reception: Reception) -> None:
        """Remove a reception. A second call does nothing."""
        self._progress.pop(reception, None)

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """Let stalled receptions give way while the caller waits."""
        self._waiting += 1
        if self._next_look is None:
            # Not at once, because the caller begins to wait after this.
            self._due_s = self._monotonic()
            self._next_look = asyncio.get_running_loop().call_soon(self._look)
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting and self._next_look is not None:
                self._next_look.cancel()
                self._next_look = None

    def make_way(self, is_wanted: Callable[[], bool]) -> None:
        """Let stalled receptions give way until ``is_wanted`` returns False."""
        now_s = self._looked_s = self._monotonic()
        stalled = []
        for reception, progress in self._progress.items():
            received_bytes = reception.received_bytes
            if received_bytes - progress.bytes >= max(1, reception.held_bytes // _PROGRESS):
                progress.bytes, progress.since_s = received_bytes, now_s
            elif now_s - progress.since_s >= GIVE_WAY_S:
                stalled.append((progress.since_s, reception))
        stalled.sort(key=lambda each: each[0])
        for since_s, reception in stalled:
            if not is_wanted():
                return
            self.end(reception)
            self.gave_way += 1
            reception.give_way(now_s - since_s)

    def make_way_for_refused(self, is_wanted: Callable[[], bool]) -> None:
        """Do as ``make_way``, but not at each of many calls that are refused one after another."""
        if self._monotonic() >= self._looked_s + _LOOK_S:
            self.make_way(is_wanted)

    def _look(self) -> None:
        late_s = self._monotonic() - self._due_s
        if late_s > _LOOK_S:  # the event loop stood still, and received nothing either
            for progress in self._progress.values():
                progress.since_s += late_s
        self.make_way(self._is_wanted)
        self._due_s = self._monotonic() + _LOOK_S
        self._next_look = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
