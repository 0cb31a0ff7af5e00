"""Calls that wait until something holds, which is looked at whenever something is heard of their key.

A topic's leaders may be waited for so, or the end of a transaction.
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
    """Those who wait for conditions. For the event loop's thread alone."""

    def __init__(self, name: str, timer: Timer) -> None:
        """``name`` says what waits here."""
        self._purgatory: Final[Purgatory[Key]] = Purgatory(name, timer)

    async def until(self, key: Key, holds: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until ``holds``, which is looked at now and at each ``check``; False when the time is up."""
        if holds():
            return True
        waiting = _Waiting(holds, timeout_ms)
        try:
            if not self._purgatory.complete_or_watch(waiting, [key]):
                with parked():
                    await waiting.ended
        finally:
            waiting.force_complete()  # the call was cancelled: nobody waits any more
        return holds()

    def check(self, key: Key) -> None:
        """Something was heard of a key."""
        self._purgatory.check(key)

    def close(self) -> None:
        """Let nobody wait any more: the broker stops."""
        self._purgatory.close()

    def statistics(self) -> PurgatoryStatistics:
        """The present numbers."""
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
