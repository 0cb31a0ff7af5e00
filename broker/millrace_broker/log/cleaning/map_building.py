"""The first pass of a cleaning (Kafka's ``Cleaner.buildOffsetMap``).

This pass reads the dirty part of a log into the offset map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from millrace_broker.log.cleaning.batches import CleanableBatch, TopicKeys
from millrace_broker.log.cleaning.chunks import Chunk
from millrace_broker.log.cleaning.key_hashes import KeyHasher, valid_mask
from millrace_broker.log.cleaning.offset_map import OffsetMap
from millrace_broker.log.cleaning.statistics import CleaningCounts
from millrace_broker.log.cleaning.transactions import CleanedTransactions


class MapBuilding:
    """The state of the first pass.

    The pass adds batches in order until the map is full. ``transactions`` knows the aborted transactions, whose data
    does not count.
    """

    def __init__(
        self,
        offsets: OffsetMap,
        hasher: KeyHasher,
        transactions: CleanedTransactions,
        counts: CleaningCounts,
        topic_keys: TopicKeys,
        start_offset: int,
    ) -> None:
        self._topic_keys: Final = topic_keys
        self._map: Final = offsets
        self._hasher: Final = hasher
        self._transactions: Final = transactions
        self._counts: Final = counts
        self._start_offset: Final = start_offset

    def take(self, batches: Iterable[CleanableBatch]) -> bool:
        """Add batches; returns False if the map was full before their end.

        The map's ``latest_offset`` is then the higher of two offsets. One is that of the last added record. The other
        is that of the last batch before the one with the first record that did not fit.
        """
        dirty = [batch for batch in batches if batch.last_offset >= self._start_offset]
        data = []
        for batch in dirty:
            self._counts.bytes_mapped += batch.size_bytes
            self._counts.records_mapped += batch.count
            is_useless = self._transactions.see(batch)
            if not batch.is_control and not is_useless and batch.count:
                data.append(batch)
        full_in = self._put(data)
        reached = dirty if full_in is None else dirty[: dirty.index(full_in)]
        if reached:
            self._map.latest_offset = max(self._map.latest_offset, reached[-1].last_offset)
        return full_in is None

    def _put(self, batches: Sequence[CleanableBatch]) -> CleanableBatch | None:
        """Add the keys of batches; returns the batch in which the map was full."""
        if not batches:
            return None
        chunk = Chunk(batches, self._topic_keys)
        rows = np.flatnonzero(valid_mask(chunk.keys) & (chunk.offsets >= self._start_offset))
        taken = self._map.put(self._hasher.hash(chunk.keys)[rows], chunk.offsets[rows])
        if taken == len(rows):
            return None
        return batches[int(np.searchsorted(np.cumsum(chunk.sizes), rows[taken], side="right"))]

    def reach(self, following_offset: int) -> None:
        """Take note that a segment was added to its end, even if offsets are missing there."""
        self._map.latest_offset = max(self._map.latest_offset, following_offset - 1)
