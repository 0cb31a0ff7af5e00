"""Limits on what clients can make the broker hold: requests, connections, and the bytes of both.

All of it lives in the event loop's thread. What exceeds a count is refused with ``ThrottledError``, which clients
retry; what exceeds the bytes waits its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from millrace.errors import ThrottledError

ACTIVE_CONNECTION_S: Final = 10.0
"""How long a connection counts after its last call where connections come and go unseen, as gRPC's do."""

_DECAY: Final = 8
"""A size estimate loses this fraction of itself with each smaller body."""


@dataclass(frozen=True, slots=True)
class LimitStatistics:
    """What is in progress, and how often a limit refused or delayed something since the start."""

    requests: int
    connections: int
    bytes_in_use: int
    refused: int
    delayed: int


class RequestLimits:
    """Counts requests in progress and the connections that they come from."""

    def __init__(self, *, requests_max: int, connections_max: int, monotonic: Callable[[], float]) -> None:
        self._requests_max = requests_max
        self.connections_max = connections_max
        """May be changed."""
        self._monotonic = monotonic
        self._requests = 0
        self._refused = 0
        self._in_progress: dict[str, int] = {}
        self._last_seen: dict[str, float] = {}
        self._open: set[str] = set()

    @property
    def requests(self) -> int:
        """Requests in progress."""
        return self._requests

    @property
    def refused(self) -> int:
        """Requests refused since the start."""
        return self._refused

    @property
    def connections(self) -> int:
        """Connections that are known to be open, or had a call in the last ``ACTIVE_CONNECTION_S`` seconds."""
        self._forget_idle()
        return len(self._last_seen) + len(self._open)

    @contextmanager
    def request(self, peer: str) -> Iterator[None]:
        """A request from a connection, for as long as it is in progress. Raises ``ThrottledError``."""
        self.begin(peer)
        try:
            yield
        finally:
            self.end(peer)

    def begin(self, peer: str) -> None:
        """A request from a connection begins; ``end`` is to be called if it was admitted. Raises ``ThrottledError``."""
        self._admit(peer)
        self._requests += 1
        if peer not in self._open:
            self._in_progress[peer] = self._in_progress.get(peer, 0) + 1

    def end(self, peer: str) -> None:
        """A request that ``begin`` admitted has ended."""
        self._requests -= 1
        if peer in self._open:
            return
        self._in_progress[peer] -= 1
        if not self._in_progress[peer]:
            del self._in_progress[peer]
        self._last_seen[peer] = self._monotonic()

    def connected(self, peer: str) -> None:
        """Count a connection until it is ``disconnected``, which a listener knows. Raises ``ThrottledError``."""
        self._make_room()
        self._open.add(peer)

    def disconnected(self, peer: str) -> None:
        """A connection that was counted is closed; requests of it have ended."""
        self._open.discard(peer)

    @property
    def is_full(self) -> bool:
        """Whether there are as many connections as there may be."""
        return self.connections >= self.connections_max

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A request that was admitted waits for what other clients do: meanwhile it takes nobody's place.

        Without this, members of a group that wait for each other could keep out those whom they wait for.
        """
        self._requests -= 1
        try:
            yield
        finally:
            self._requests += 1

    def _admit(self, peer: str) -> None:
        if self._requests >= self._requests_max:
            self._refused += 1
            raise ThrottledError(
                f"{self._requests} requests are in progress, as many as queued.max.requests allows: try again"
            )
        if peer in self._open:
            return
        if peer not in self._last_seen:
            self._make_room()
        self._last_seen[peer] = self._monotonic()

    def _make_room(self) -> None:
        if len(self._last_seen) + len(self._open) >= self.connections_max and self.is_full:
            self._refused += 1
            raise ThrottledError(
                f"{self.connections} connections are active, as many as max.connections allows: try again"
            )

    def _forget_idle(self) -> None:
        horizon = self._monotonic() - ACTIVE_CONNECTION_S
        self._last_seen = {
            peer: seen for peer, seen in self._last_seen.items() if seen >= horizon or peer in self._in_progress
        }


class ByteBudget:
    """A number of bytes shared by calls; who asks for more than is left waits, first come first served.

    A call that asks for more than the whole budget gets it alone, so that nothing waits for ever.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes: Final = size_bytes
        self._left_bytes = size_bytes
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._delayed = 0

    @property
    def in_use_bytes(self) -> int:
        """Bytes that calls hold now."""
        return self._size_bytes - self._left_bytes

    @property
    def delayed(self) -> int:
        """Calls that had to wait since the start."""
        return self._delayed

    async def take(self, size_bytes: int) -> int:
        """Wait for ``size_bytes`` and take them; returns what to give back. Cancellation takes nothing."""
        if (taken := self.take_now(size_bytes)) is not None:
            return taken
        amount = min(size_bytes, self._size_bytes)
        self._delayed += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((amount, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(amount)  # it was given in the very moment of the cancellation
            else:
                self._queue = deque(entry for entry in self._queue if entry[1] is not turn)
                self._wake()
            raise
        return amount

    def take_now(self, size_bytes: int) -> int | None:
        """Take bytes as ``take`` does, if there is no need to wait."""
        amount = min(size_bytes, self._size_bytes)
        if self._queue or amount > self._left_bytes:
            return None
        self._left_bytes -= amount
        return amount

    def charge(self, amount: int) -> None:
        """Take bytes that are there already, without waiting; the budget may be overdrawn until they are returned."""
        self._left_bytes -= amount

    def give_back(self, amount: int) -> None:
        """Return what ``take`` or ``charge`` gave."""
        self._left_bytes += amount
        self._wake()

    def _wake(self) -> None:
        while self._queue and self._queue[0][0] <= self._left_bytes:
            amount, turn = self._queue.popleft()
            if not turn.done():
                self._left_bytes -= amount
                turn.set_result(None)


class SizeEstimate:
    """How large the next body will be, whose size is known only once it has been received: as the recent ones.

    It follows larger bodies at once and smaller ones slowly, so that a burst of large ones is held back from its
    second on, and small ones soon have many receptions at a time.
    """

    def __init__(self, first_bytes: int) -> None:
        self._bytes = first_bytes

    @property
    def bytes(self) -> int:
        """The present estimate."""
        return self._bytes

    def saw(self, size_bytes: int) -> None:
        """Learn from a body that was received."""
        self._bytes = max(size_bytes, self._bytes - -(-self._bytes // _DECAY), 1)


class Lease:
    """Bytes of a budget held by one call, given back at the latest when the call ends."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    async def take(self, size_bytes: int) -> None:
        """Wait for more bytes. To be called once: who waits while holding some may wait for ever."""
        self._held_bytes += await self._budget.take(size_bytes)

    def take_now(self, size_bytes: int) -> bool:
        """Take bytes as ``take`` does, if there is no need to wait; false where there is."""
        taken = self._budget.take_now(size_bytes)
        if taken is None:
            return False
        self._held_bytes += taken
        return True

    def settle(self, size_bytes: int) -> None:
        """Hold what turned out to be needed, more or less than was taken; does not wait."""
        difference = size_bytes - self._held_bytes
        self._held_bytes = size_bytes
        if difference > 0:
            self._budget.charge(difference)
        elif difference < 0:
            self._budget.give_back(-difference)

    def release(self) -> None:
        """Give all back; again does nothing."""
        self.settle(0)
