"""Calls that wait until nothing is under way with a transactional id: the last transaction is ended, say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from millrace_broker.purgatory import DelayedOperation, Purgatory, PurgatoryStatistics, Timer

ShardKey = tuple[int, str]
"""Partition of ``__transaction_state`` and transactional id."""


class Settlings:
    """Those who wait for a transactional id to settle. For the event loop's thread."""

    def __init__(self, timer: Timer) -> None:
        self._purgatory: Final[Purgatory[ShardKey]] = Purgatory("transaction to be ended", timer)

    async def wait(self, key: ShardKey, is_settled: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until ``is_settled``, which is looked at when ``check`` says so; False when the time is up."""
        if is_settled():
            return True
        waiting = _Waiting(is_settled, timeout_ms)
        try:
            self._purgatory.complete_or_watch(waiting, [key])
            await waiting.ended
        finally:
            waiting.force_complete()
        return is_settled()

    def check(self, key: ShardKey) -> None:
        """Something about a transactional id has changed."""
        self._purgatory.check(key)

    def close(self) -> None:
        """Let nobody wait any more."""
        self._purgatory.close()

    def statistics(self) -> PurgatoryStatistics:
        """The present numbers."""
        return self._purgatory.statistics()


class _Waiting(DelayedOperation):
    def __init__(self, is_settled: Callable[[], bool], timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self._is_settled: Final = is_settled
        self.ended: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def try_complete(self) -> bool:
        return self._is_settled() and self.force_complete()

    def on_complete(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
