"""Wait for records to arrive in partitions, as in Kafka's ``DelayedFetch``.

Appends wake the waiting calls, so that these need not poll. A caller takes a ``watch`` before its last read of the log,
so that it misses no append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from millrace_broker.log import PartitionKey
from millrace_broker.purgatory.operation import DelayedOperation
from millrace_broker.purgatory.purgatory import Purgatory, PurgatoryStatistics
from millrace_broker.purgatory.timer import Timer
from millrace_broker.quotas import parked

_WAKE_BYTES: Final = 2**40


class Arrivals:
    """Counters of the bytes that arrive in partitions, for calls that wait. Only for the event loop's thread."""

    def __init__(self, name: str, timer: Timer) -> None:
        """Create counters. ``name`` names the kind of waiting calls."""
        self._purgatory: Final[Purgatory[PartitionKey]] = Purgatory(name, timer)
        self._arrived: Final[dict[PartitionKey, int]] = {}
        self._changes = 0
        self._is_closed = False

    def arrived(self, key: PartitionKey, size_bytes: int) -> None:
        """Report that ``size_bytes`` of records were appended and can be read."""
        self._arrived[key] = self._arrived.get(key, 0) + size_bytes
        self._purgatory.check(key)

    def wake(self, key: PartitionKey) -> None:
        """Wake all calls that wait for a partition, whatever number of bytes they want."""
        self.arrived(key, _WAKE_BYTES)

    def changed(self, key: PartitionKey) -> None:
        """Wake all calls that wait for a partition after a change such as its deletion."""
        self._arrived.pop(key, None)
        # Calls that read the log now and do not wait yet read it once more, even if another partition changed.
        self._changes += 1
        self._purgatory.complete_all(key)

    def watch(self, keys: Iterable[PartitionKey]) -> Watch:
        """Count the bytes that arrive in ``keys`` from now on."""
        return Watch(self, tuple(keys))

    def close(self) -> None:
        """End all waits, now and later, because the broker stops."""
        self._is_closed = True
        self._purgatory.close()

    def statistics(self) -> PurgatoryStatistics:
        """Return the current statistics."""
        return self._purgatory.statistics()


class Watch:
    """Bytes that arrived in some partitions since its creation. It holds no resource and may be dropped at any time."""

    def __init__(self, arrivals: Arrivals, keys: tuple[PartitionKey, ...]) -> None:
        self._arrivals: Final = arrivals
        self._keys: Final = keys
        self._before_bytes: Final = self._total_bytes()
        self._before_changes: Final = arrivals._changes

    def has(self, wanted_bytes: int) -> bool:
        """Return whether ``wanted_bytes`` arrived or a partition changed."""
        is_changed = self._arrivals._changes != self._before_changes
        return is_changed or self._total_bytes() - self._before_bytes >= wanted_bytes

    async def wait(self, *, wanted_bytes: int, timeout_s: float, is_poll: bool = False) -> bool:
        """Wait until ``wanted_bytes`` arrived since the watch was taken, or for a change.

        Return False after ``timeout_s``.

        The waiting call is parked. A poll may be ended early, as by a timeout. The result is False at once when the
        broker stops, because a caller that retries in a loop would block the event loop.
        """
        waiting = _Waiting(self, wanted_bytes, timeout_s)
        try:
            if not self._arrivals._purgatory.complete_or_watch(waiting, self._keys):
                with parked(waiting.expire if is_poll else None):
                    await waiting.ended
        finally:
            # The call was cancelled, so the operation leaves the purgatory.
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
