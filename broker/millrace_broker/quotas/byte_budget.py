"""Budget of bytes that calls share, leases of single calls, and size estimates.

All of it runs in the event loop's thread. A call that needs more bytes than are left waits its turn.
"""

from __future__ import annotations

import asyncio
from typing import Final

from millrace_broker.quotas.waiting import parked

_DECAY: Final = 8
"""A size estimate loses this fraction of itself with each smaller body."""


class ByteBudget:
    """Bytes shared by calls. A call that needs more than is left waits, first come first served.

    A call that needs more than the whole budget gets the budget alone, so that no call waits for ever.
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
        """Number of calls that waited, since the start."""
        return self._delayed

    async def take(self, size_bytes: int, *, is_poll: bool = False) -> int | None:
        """Wait for ``size_bytes`` and take them. Return the number of bytes to give back. A cancelled call takes none.

        The waiting call is parked. A poll may be ended early; it then takes no bytes and gets None.
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
                self.give_back(amount)  # the bytes were granted at the moment of the cancellation
            raise

    def take_now(self, size_bytes: int) -> int | None:
        """Take bytes as ``take`` does if no wait is needed, else return None. Taking 0 bytes never waits."""
        amount = min(size_bytes, self._size_bytes)
        if amount and (self._queue or amount > self._left_bytes):
            return None
        self._left_bytes -= amount
        return amount

    def charge(self, amount: int) -> None:
        """Take bytes that are already in memory, without a wait.

        The budget may be overdrawn until they are returned.
        """
        self._left_bytes -= amount

    def give_back(self, amount: int) -> None:
        """Return bytes from ``take`` or ``charge``."""
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
    """Estimate of the next body's size, which is unknown until its reception, from recent bodies.

    The estimate follows larger bodies at once and smaller bodies slowly. A burst of large bodies is held back from its
    second body on. Small bodies soon have many receptions at a time.
    """

    def __init__(self, first_bytes: int) -> None:
        self._bytes = first_bytes

    @property
    def bytes(self) -> int:
        """The current estimate."""
        return self._bytes

    def saw(self, size_bytes: int) -> None:
        """Update the estimate with a received body."""
        self._bytes = max(size_bytes, self._bytes - -(-self._bytes // _DECAY), 1)


class Lease:
    """Bytes of a budget held by one call, which gives them back when it ends at the latest."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that the call holds."""
        return self._held_bytes

    async def take(self, size_bytes: int, *, is_poll: bool = False) -> bool:
        """Wait for more bytes; return False if a poll was ended early.

        Call it once per lease, because a call that waits while it holds bytes may wait for ever.
        """
        taken = await self._budget.take(size_bytes, is_poll=is_poll)
        self._held_bytes += taken or 0
        return taken is not None

    def take_now(self, size_bytes: int) -> bool:
        """Take bytes as ``take`` does if no wait is needed; return False otherwise."""
        taken = self._budget.take_now(size_bytes)
        if taken is None:
            return False
        self._held_bytes += taken
        return True

    def settle(self, size_bytes: int) -> None:
        """Adjust the lease to the bytes actually needed, without a wait."""
        difference = size_bytes - self._held_bytes
        self._held_bytes = size_bytes
        if difference > 0:
            self._budget.charge(difference)
        elif difference < 0:
            self._budget.give_back(-difference)

    def release(self) -> None:
        """Give back all bytes. A second call does nothing."""
        self.settle(0)
