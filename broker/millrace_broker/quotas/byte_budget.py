"""Budget of bytes that calls share.

A lease holds the bytes of one call. The size estimate is for requests of unknown size. This code runs in the event
loop's thread. A call that needs more bytes than are left waits its turn.

A request is received in steps while less than half of the budget is left. Its call holds at most ``_STEP`` times the
bytes that have arrived, or ``_FIRST_STEP_BYTES``. So a client that sends the head of a large request alone holds
little. The calls that need their next step go before other calls. All bytes may belong to calls that wait for their
next step. The first of these calls then gets the whole rest of its request beyond the budget. It holds all that it
needs then, so only one request at a time is beyond the budget.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from millrace_broker.quotas.waiting import parked

_FIRST_STEP_BYTES: Final = 64 * 1024
_STEP: Final = 4
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
        self._growing: Final[dict[asyncio.Future[int], _Growth]] = {}
        self._growing_bytes = 0
        """Bytes that the calls in ``_growing`` hold."""
        self._delayed = 0

    @property
    def size_bytes(self) -> int:
        """Size of the whole budget."""
        return self._size_bytes

    @property
    def is_wanted(self) -> bool:
        """True if a call waits for bytes."""
        return bool(self._queue or self._growing)

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
        if amount and (self._queue or self._growing or amount > self._left_bytes):
            return None
        self._left_bytes -= amount
        return amount

    def step(self, size_bytes: int, arrived_bytes: int) -> int:
        """Return the bytes that a request of ``size_bytes`` takes next, when some of it have arrived."""
        if self._left_bytes - size_bytes >= self._size_bytes // 2:
            return size_bytes
        return min(size_bytes, max(_FIRST_STEP_BYTES, arrived_bytes * _STEP))

    async def grow(self, held_bytes: int, step_bytes: int, rest_bytes: int) -> int:
        """Wait for ``step_bytes`` more than the ``held_bytes`` of a call. Return how many it gets.

        These are all ``rest_bytes`` of its request if no other call could give back bytes. A cancelled call gets none.
        """
        self._delayed += 1
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._growing[turn] = _Growth(held_bytes, step_bytes, rest_bytes)
        self._growing_bytes += held_bytes
        self._wake()
        try:
            return await turn
        except asyncio.CancelledError:
            if self._growing.pop(turn, None) is not None:
                self._growing_bytes -= held_bytes
                self._wake()
            elif turn.done() and not turn.cancelled():
                self.give_back(turn.result())  # the bytes were granted at the moment of the cancellation
            raise

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
        self._wake_growing()
        while self._queue and not self._growing:
            turn, amount = next(iter(self._queue.items()))
            if not turn.cancelled():
                if amount > self._left_bytes:
                    return
                self._left_bytes -= amount
                turn.set_result(True)
            del self._queue[turn]

    def _wake_growing(self) -> None:
        while self._growing:
            turn, growth = next(iter(self._growing.items()))
            if not turn.cancelled():
                amount = growth.step_bytes
                if amount > self._left_bytes:
                    if self.in_use_bytes > self._growing_bytes:
                        return
                    amount = growth.rest_bytes
                self._left_bytes -= amount
                turn.set_result(amount)
            del self._growing[turn]
            self._growing_bytes -= growth.held_bytes


class _Growth(NamedTuple):
    """Memory of a call that waits for its request's next step.

    The call holds ``held_bytes``, and waits for ``step_bytes``. ``rest_bytes`` is the whole rest of its request.
    """

    held_bytes: int
    step_bytes: int
    rest_bytes: int


class SizeEstimate:
    """Estimate of the next body's size from recent bodies.

    The size of a body is unknown until its reception. The estimate follows larger bodies at once and smaller bodies
    slowly. So a burst of large bodies is delayed from its second body on, and many small bodies are soon received at a
    time.
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
    """Bytes of a budget that one call holds.

    The call gives them back when it ends at the latest.
    """

    __slots__ = ("_budget", "_held_bytes")

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

    def covered_bytes(self, size_bytes: int) -> int:
        """Return how many bytes of a request of ``size_bytes`` may be in memory.

        These are all if the call holds the whole budget.
        """
        is_whole = self._held_bytes >= min(size_bytes, self._budget.size_bytes)
        return size_bytes if is_whole else self._held_bytes

    def grow_now(self, size_bytes: int, arrived_bytes: int) -> bool:
        """Take the next step of a request as ``grow`` does if no wait is needed; return False otherwise."""
        if arrived_bytes == size_bytes:  # most requests arrive with their head
            return self.take_now(size_bytes - self._held_bytes)
        return self.take_now(self._growth_bytes(self._budget.step(size_bytes, arrived_bytes)))

    async def grow(self, size_bytes: int, arrived_bytes: int) -> None:
        """Wait for the next step of a request, of which all covered bytes have arrived."""
        step_bytes = self._growth_bytes(self._budget.step(size_bytes, arrived_bytes))
        self._held_bytes += await self._budget.grow(self._held_bytes, step_bytes, self._growth_bytes(size_bytes))

    def _growth_bytes(self, size_bytes: int) -> int:
        return min(size_bytes, self._budget.size_bytes) - self._held_bytes

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
        if self._held_bytes:
            self.settle(0)
