"""Waiting for records to arrive in partitions: who waits is woken by appends instead of looking again and again.

Whoever wants to wait takes a ``watch`` before looking at the log for the last time, so that no append falls between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from millrace_broker.purgatory.operation import DelayedOperation
from millrace_broker.purgatory.purgatory import Purgatory, PurgatoryStatistics
from millrace_broker.purgatory.timer import Timer
from millrace_broker.quotas import parked

PartitionKey = tuple[str, int]
"""Topic name and partition number."""
_WAKE_BYTES: Final = 2**40


class Arrivals:
    """Counts the bytes that arrive in partitions, and lets calls wait for them. For the event loop's thread alone."""

    def __init__(self, name: str, timer: Timer) -> None:
        """``name`` says what waits here."""
        self._purgatory: Final[Purgatory[PartitionKey]] = Purgatory(name, timer)
        self._arrived: Final[dict[PartitionKey, int]] = {}
        self._changes = 0
        self._is_closed = False

    def arrived(self, key: PartitionKey, size_bytes: int) -> None:
        """Say that ``size_bytes`` of records were appended and may be read."""
        self._arrived[key] = self._arrived.get(key, 0) + size_bytes
        self._purgatory.check(key)

    def wake(self, key: PartitionKey) -> None:
        """Have those who wait for a partition look again, for however many bytes they wait."""
        self.arrived(key, _WAKE_BYTES)

    def changed(self, key: PartitionKey) -> None:
        """Say that a partition changed in a way that its waiters must see at once (it was deleted, say)."""
        self._arrived.pop(key, None)
        # Those who look at the log just now, and do not wait yet, look once more: that it was another's is no harm.
        self._changes += 1
        self._purgatory.complete_all(key)

    def watch(self, keys: Iterable[PartitionKey]) -> Watch:
        """Count from now on what arrives in ``keys``."""
        return Watch(self, tuple(keys))

    def close(self) -> None:
        """Let nobody wait any more, now or later: the broker stops."""
        self._is_closed = True
        self._purgatory.close()

    def statistics(self) -> PurgatoryStatistics:
        """The present numbers."""
        return self._purgatory.statistics()


class Watch:
    """What has arrived in some partitions since it was taken. It holds nothing: it may be dropped at any time."""

    def __init__(self, arrivals: Arrivals, keys: tuple[PartitionKey, ...]) -> None:
        self._arrivals: Final = arrivals
        self._keys: Final = keys
        self._before_bytes: Final = self._total_bytes()
        self._before_changes: Final = arrivals._changes

    def has(self, wanted_bytes: int) -> bool:
        """Whether so much has arrived, or a partition has changed."""
        is_changed = self._arrivals._changes != self._before_changes
        return is_changed or self._total_bytes() - self._before_bytes >= wanted_bytes

    async def wait(self, *, wanted_bytes: int, timeout_s: float, is_poll: bool = False) -> bool:
        """Wait until ``wanted_bytes`` arrived since the watch was taken, or a change; False after ``timeout_s``.

        The call that waits is parked; a poll may have to end before, as if its time were up.
        False at once when the broker stops: who looked again and again would keep the event loop for itself.
        """
        waiting = _Waiting(self, wanted_bytes, timeout_s)
        try:
            if not self._arrivals._purgatory.complete_or_watch(waiting, self._keys):
                with parked(waiting.expire if is_poll else None):
                    await waiting.ended
        finally:
            # The call was cancelled: nobody waits any more.
            waiting.force_complete()
        return not (waiting.is_expired or self._arrivals._is_closed)

    def _total_bytes(self) -> int:
        return sum(self._arrivals._arrived.get(key, 0) for key in self._keys)


class _Waiting(DelayedOperation):
    def __init__(self, watch: Watch, wanted_bytes: int, timeout_s: float) -> None:
        super().__init__(max(0, round(timeout_s * 1000)))
        self._watch: Final = watch
        self._wanted_bytes: Final = wanted_bytes
        self.ended: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.is_expired = False

    def try_complete(self) -> bool:
        return self._watch.has(self._wanted_bytes) and self.force_complete()

    def on_complete(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def on_expiration(self) -> None:
        self.is_expired = True
