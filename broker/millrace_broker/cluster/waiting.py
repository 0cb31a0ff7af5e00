"""Waiting for the controller to have done something to a topic: for its leaders, or for its end.

The controller acts on what was written down, and tells all brokers: that is when it is looked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from millrace_broker.purgatory import DelayedOperation, Purgatory, PurgatoryStatistics, Timer


class TopicWaits:
    """Those who wait for topics. For the event loop's thread."""

    def __init__(self, timer: Timer) -> None:
        self._purgatory: Final[Purgatory[str]] = Purgatory("topic", timer)

    async def until(self, topic: str, holds: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until ``holds``, which is looked at when something was heard of the topic; False after the time."""
        waiting = _Waiting(holds, timeout_ms)
        try:
            self._purgatory.complete_or_watch(waiting, [topic])
            await waiting.ended
        finally:
            waiting.force_complete()  # the call was cancelled: nobody waits any more
        return holds()

    def check(self, topic: str) -> None:
        """Something was heard of a topic."""
        self._purgatory.check(topic)

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
