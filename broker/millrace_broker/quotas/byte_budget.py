"""Bytes that calls share: a budget, what one call holds of it, and estimates of what the next will need.

All of it lives in the event loop's thread. A call that needs more than is left waits its turn.
"""

from __future__ import annotations

import asyncio
from typing import Final

from millrace_broker.quotas.waiting import parked

_DECAY: Final = 8
"""A size estimate loses this fraction of itself with each smaller body."""


class ByteBudget:
    """A number of bytes shared by calls; who asks for more than is left waits, first come first served.

    A call that asks for more than the whole budget gets it alone, so that nothing waits for ever.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes: Final = size_bytes
        self._left_bytes = size_bytes
        self._queue: Final[dict[asyncio.Future[bool], int]] = {}
        self._delayed = 0

    @property
    def in_use_bytes(self) -> int:
        """Bytes that calls hold now."""
        return self._size_bytes - self._left_bytes

    @property
    def delayed(self) -> int:
        """Calls that had to wait since the start."""
        return self._delayed

    async def take(self, size_bytes: int, *, is_poll: bool = False) -> int | None:
        """Wait for ``size_bytes`` and take them; returns what to give back. Cancellation takes nothing.

        The call that waits is parked. A poll may be told to give up, and then takes nothing and gets None.
        """
        if (taken := self.take_now(size_bytes)) is not None:
            return taken
        amount = min(size_bytes, self._size_bytes)
        self._delayed += 1
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue[turn] = amount

        def give_up() -> None:
            if self._queue.pop(turn, None) is not None:
                turn.set_result(False)
                self._wake()

        try:
            with parked(give_up if is_poll else None):
                return amount if await turn else None
        except asyncio.CancelledError:
            if self._queue.pop(turn, None) is not None:
                self._wake()
            elif turn.done() and not turn.cancelled() and turn.result():
                self.give_back(amount)  # it was given in the very moment of the cancellation
            raise

    def take_now(self, size_bytes: int) -> int | None:
        """Take bytes as ``take`` does, if there is no need to wait: there is none to take nothing."""
        amount = min(size_bytes, self._size_bytes)
        if amount and (self._queue or amount > self._left_bytes):
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
        while self._queue:
            turn, amount = next(iter(self._queue.items()))
            if not turn.cancelled():
                if amount > self._left_bytes:
                    return
                self._left_bytes -= amount
                turn.set_result(True)
            del self._queue[turn]


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

    @property
    def held_bytes(self) -> int:
        """Bytes that the call holds."""
        return self._held_bytes

    async def take(self, size_bytes: int, *, is_poll: bool = False) -> bool:
        """Wait for more bytes; false if a poll was told to give up. To be called once: a call that waits while it
        holds some may wait for ever.
        """
        taken = await self._budget.take(size_bytes, is_poll=is_poll)
        self._held_bytes += taken or 0
        return taken is not None

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
