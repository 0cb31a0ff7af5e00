"""The calls that wait for a partition's records, and partition locks.

Invariants

- Code that changes a partition's log, or this broker's role in it, holds the partition's lock. Records that were
  appended as a leader are therefore in the log before the partition is followed.
- Fetches of committed records are woken when the last stable offset rises, with the bytes that it passed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from millrace_broker.log import PartitionLog
from millrace_broker.purgatory import Arrivals, PartitionKey, Timer


class Waiters:
    """The delayed fetches and produces of one broker, and its partitions' locks. For the event loop's thread."""

    def __init__(self, timer: Timer) -> None:
        self.locks: Final[defaultdict[PartitionKey, asyncio.Lock]] = defaultdict(asyncio.Lock)
        self.fetches: Final = Arrivals("fetch", timer)
        """Woken when records come before the high watermark."""
        self.committed_fetches: Final = Arrivals("fetch of committed records", timer)
        """Woken when records come before the last stable offset."""
        self.appends: Final = Arrivals("produce after another", timer)
        """Woken when records are appended, whether or not they may be read yet."""
        self._stable_offsets: Final[dict[PartitionKey, int]] = {}
        self._unstable_bytes: Final[dict[PartitionKey, int]] = {}

    def readable(self, key: PartitionKey, log: PartitionLog, size_bytes: int) -> None:
        """Wake fetches, because the high watermark of a partition has risen past ``size_bytes`` of records."""
        self.fetches.arrived(key, size_bytes)
        unstable_bytes = self._unstable_bytes.pop(key, 0) + size_bytes
        stable_offset = log.last_stable_offset
        if stable_offset > self._stable_offsets.get(key, -1):
            self._stable_offsets[key] = stable_offset
            self.committed_fetches.arrived(key, unstable_bytes)
        if stable_offset < log.high_watermark:
            self._unstable_bytes[key] = unstable_bytes

    def start_moved(self, key: PartitionKey) -> None:
        """Wake fetches, because the log start offset of a partition has risen."""
        self.fetches.changed(key)
        self.committed_fetches.changed(key)

    def changed(self, key: PartitionKey) -> None:
        """Wake all calls that wait for a partition, because it was deleted or its role has changed."""
        for arrivals in (self.fetches, self.committed_fetches, self.appends):
            arrivals.changed(key)
        self._stable_offsets.pop(key, None)
        self._unstable_bytes.pop(key, None)

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        """Wake all calls that wait for deleted partitions, and drop the locks of these partitions."""
        for key in keys:
            self.changed(key)
            self.locks.pop(key, None)

    def close(self) -> None:
        """End all waits, present and future ones, because the broker stops."""
        for arrivals in (self.fetches, self.committed_fetches, self.appends):
            arrivals.close()
