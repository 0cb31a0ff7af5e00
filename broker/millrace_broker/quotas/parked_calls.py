"""Memory of the calls that wait for others, and which of them are answered early when it is full.

A *poll* is a call that may be answered empty at any time: a long-poll fetch. The others (acks=all, joins) are *bound*
to wait, because only a timeout is an early answer to them.

Invariants

- The calls that are held and were not evicted take at most ``bytes_max``, bound ones at most half of it.
- A poll is never refused. When there is no room, the poll that has waited longest is evicted, at worst the new one.
- A call is evicted at most once, and only while it waits. It is held until its answer is made.

All of it is deterministic: no clock, no randomness; the order of waiting is the order of the calls to ``poll``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_BOUND_SHARE: Final = 2
"""Bound calls take at most the ``_BOUND_SHARE``-th part, so that some polls can always wait."""


class ParkedCalls(Generic[K]):
    """Calls by a key of the caller's choice."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max: Final = bytes_max
        self._held: Final[dict[K, int]] = {}
        self._bound: Final[set[K]] = set()
        self._polls: Final[dict[K, Callable[[], None]]] = {}
        """Those that wait and may be evicted, the longest first."""
        self._leaving: Final[set[K]] = set()
        """Those that were evicted and not answered yet."""
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
        """Memory of all calls that are held."""
        return self._held_bytes

    @property
    def evicted(self) -> int:
        """Calls that were answered early since the start."""
        return self._evicted

    def is_evicted(self, key: K) -> bool:
        """Return whether a call was evicted and is to be answered with what there is."""
        return key in self._leaving

    def bind(self, key: K, size_bytes: int) -> bool:
        """Hold a call that has to wait; false if there is no room, and the call is to be counted elsewhere."""
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
        """Hold a call that may be evicted from now on, until ``woken``; then ``give_up`` is called.

        That may be before this returns. A call that is held already keeps the size that it has.
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
        """Note that a call does not wait any more: it is answered soon, and cannot be evicted meanwhile."""
        self._polls.pop(key, None)

    def release(self, key: K) -> None:
        """Forget a call whose answer is made, or that was cancelled. A call that is not held needs none."""
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
