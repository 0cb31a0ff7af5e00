"""Memory of calls that wait for others.

Polls are answered early when the memory is full. A *poll* is a call that may be answered empty at any time, such as a
long-poll fetch. Other calls (acks=all, joins) are *bound* to wait, because a timeout is their only early answer.

Invariants

- The held calls that are not evicted take at most ``bytes_max``; bound calls take at most half of it.
- A poll is never refused. If there is no room, the poll that has waited longest is evicted, at worst the new one.
- A call is evicted at most once, and only while it waits. It is held until its answer is made.

The class is deterministic: it has no clock and no randomness. The order of waiting is the order of the calls to
``poll``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_BOUND_SHARE: Final = 2
"""Bound calls take at most 1/``_BOUND_SHARE`` of the memory, so that some polls can always wait."""


class ParkedCalls(Generic[K]):
    """Parked calls, by a key that the caller chooses."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max: Final = bytes_max
        self._held: Final[dict[K, int]] = {}
        self._bound: Final[set[K]] = set()
        self._polls: Final[dict[K, Callable[[], None]]] = {}
        """Waiting polls that may be evicted, the longest wait first."""
        self._leaving: Final[set[K]] = set()
        """Evicted polls that are not answered yet."""
        self._held_bytes = self._bound_bytes = self._leaving_bytes = 0
        self._evicted = 0

    def __len__(self) -> int:
        """Return the number of calls that are held."""
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        """Return whether a call is held."""
        return key in self._held

    @property
    def bytes(self) -> int:
        """Memory of all held calls."""
        return self._held_bytes

    @property
    def evicted(self) -> int:
        """Number of calls answered early since the start."""
        return self._evicted

    def bind(self, key: K, size_bytes: int) -> bool:
        """Hold a call that has to wait. Return False if there is no room; the caller then counts it elsewhere."""
        assert key not in self._held, "a call is held once"
        if self._bound_bytes + size_bytes > self._bytes_max // _BOUND_SHARE:
            return False
        self._make_room(size_bytes)
        if not self._has_room(size_bytes):
            return False
        self._hold(key, size_bytes)
        self._bound.add(key)
        self._bound_bytes += size_bytes
        self._check()
        return True

    def poll(self, key: K, size_bytes: int, give_up: Callable[[], None]) -> None:
        """Hold a call that may be evicted until ``woken``. Eviction calls ``give_up``.

        ``give_up`` may be called before this method returns. A call that is already held keeps its size.
        """
        assert key not in self._polls, "a call waits for one thing at a time"
        if key in self._leaving:
            give_up()
            return
        if key in self._bound:
            self._bound.discard(key)
            self._bound_bytes -= self._held[key]
        elif key not in self._held:
            self._make_room(size_bytes)
            if not self._has_room(size_bytes):
                self._hold(key, size_bytes)
                self._evict(key, give_up)
                self._check()
                return
            self._hold(key, size_bytes)
        self._polls[key] = give_up
        self._check()

    def woken(self, key: K) -> None:
        """Record the end of a wait. The call is answered soon and cannot be evicted meanwhile."""
        self._polls.pop(key, None)

    def release(self, key: K) -> None:
        """Remove a call that is answered or cancelled. For a call that is not held, do nothing."""
        size_bytes = self._held.pop(key, None)
        if size_bytes is None:
            return
        self._held_bytes -= size_bytes
        self._polls.pop(key, None)
        if key in self._bound:
            self._bound.discard(key)
            self._bound_bytes -= size_bytes
        if key in self._leaving:
            self._leaving.discard(key)
            self._leaving_bytes -= size_bytes
        self._check()

    def _hold(self, key: K, size_bytes: int) -> None:
        self._held[key] = size_bytes
        self._held_bytes += size_bytes

    def _has_room(self, size_bytes: int) -> bool:
        return self._held_bytes - self._leaving_bytes + size_bytes <= self._bytes_max

    def _make_room(self, size_bytes: int) -> None:
        while self._polls and not self._has_room(size_bytes):
            longest = next(iter(self._polls))
            self._evict(longest, self._polls.pop(longest))

    def _evict(self, key: K, give_up: Callable[[], None]) -> None:
        self._leaving.add(key)
        self._leaving_bytes += self._held[key]
        self._evicted += 1
        give_up()

    def _check(self) -> None:
        assert self._held_bytes - self._leaving_bytes <= self._bytes_max, "parked calls take more than they may"
        assert 0 <= self._bound_bytes <= self._bytes_max // _BOUND_SHARE, "bound calls take more than they may"
        assert 0 <= self._leaving_bytes <= self._held_bytes, "an evicted call is held until it is answered"
