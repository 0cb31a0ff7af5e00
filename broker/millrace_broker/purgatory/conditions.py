"""Purgatory of calls that wait until a condition holds.

A condition is checked at each event of the call's key. Calls wait, for example, until a topic has leaders, or until a
transaction has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic

from millrace_broker.purgatory.operation import DelayedOperation
from millrace_broker.purgatory.purgatory import Key, Purgatory, PurgatoryStatistics
from millrace_broker.purgatory.timer import Timer
from millrace_broker.quotas import parked


class Conditions(Generic[Key]):
    """Purgatory of calls that wait for conditions. Only for the event loop's thread."""

    def __init__(self, name: str, timer: Timer) -> None:
        """Create an empty purgatory. ``name`` names the kind of waiting calls."""
        self._purgatory: Final[Purgatory[Key]] = Purgatory(name, timer)

    async def until(self, key: Key, holds: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until ``holds`` returns true; it is checked now and at each ``check``.

        Return False after the timeout.
        """
        if holds():
            return True
        waiting = _Waiting(holds, timeout_ms)
        try:
            if not self._purgatory.complete_or_watch(waiting, [key]):
                with parked():
                    await waiting.ended
        finally:
            waiting.force_complete()  # if the call was cancelled, the operation leaves the purgatory
        return holds()

    def check(self, key: Key) -> None:
        """Check the conditions of a key again."""
        self._purgatory.check(key)

    def close(self) -> None:
        """End all waits, because the broker stops."""
        self._purgatory.close()

    def statistics(self) -> PurgatoryStatistics:
        """Return the current statistics."""
        return self._purgatory.statistics()


class _Waiting(DelayedOperation):
    def __init__(self, holds: Callable[[], bool], timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self._holds: Final = holds
        self.ended: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def try_complete(self) -> bool:
        return self._holds() and self.force_complete()

    def on_complete(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
