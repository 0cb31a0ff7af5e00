"""Decide what stays of the batches of a dirty log, a chunk of batches at a time (Kafka's ``Cleaner.cleanInto``).

A record stays when no later record of its key is known, and it has a value or its time as a tombstone is not over. A
record without a key goes, for nobody could ever replace it. What the offset map does not reach stays. Data of aborted
transactions goes, and markers of transactions that have nothing left, once their time is over. The batch with the last
sequence number of an active producer stays, even if it is empty; so does the marker that is all that is left of one.

A batch that has tombstones, or a marker that is no longer needed, gets a *delete horizon* when it is first cleaned, in
its base timestamp (KIP-534): the time from which they may go. Batches of magic 0 and 1 have no place for that: there
the age of the segment's file decides.

All batches that lose nothing are passed on as they are, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.records import NO_PRODUCER_ID, MessageEntry, read_header
from millrace_broker.log.cleaning.batches import CleanableBatch, Mask, MessageBatch, RecordKeys
from millrace_broker.log.cleaning.key_hashes import KeyHasher, valid_mask
from millrace_broker.log.cleaning.offset_map import OffsetMap
from millrace_broker.log.cleaning.statistics import CleaningCounts
from millrace_broker.log.cleaning.transactions import CleanedTransactions

_V2: Final = 2


class LastRecord(NamedTuple):
    """The end of what an active producer wrote: its last data offset, None when only a marker is left, and epoch."""

    data_offset: int | None
    epoch: int


class Kept(NamedTuple):
    """A batch that stays: its bytes, and what the indexes need to know of it."""

    data: bytes | memoryview
    size_bytes: int
    last_offset: int
    max_timestamp: int


class _Fate(Enum):
    GOES = auto()
    STAYS_WITH_RECORDS = auto()
    STAYS = auto()


class _Judged(NamedTuple):
    """``is_spent``: none of its records is of use. ``is_marker_of_nothing``: its marker's transaction has no batch."""

    batch: CleanableBatch
    fate: _Fate
    is_spent: bool
    is_marker_of_nothing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinning:
    """The rules of one cleaning."""

    map: OffsetMap
    hasher: KeyHasher
    transactions: CleanedTransactions
    last_records: Mapping[int, LastRecord]
    now_ms: int
    delete_retention_ms: int
    counts: CleaningCounts

    def thin(self, batches: Sequence[CleanableBatch], *, keeps_old_tombstones: bool) -> Iterator[Kept]:
        """Yield what stays of ``batches``, which are shown in the order of the log.

        ``keeps_old_tombstones`` is for messages of magic 0 and 1.
        """
        judged = [self._judge(batch) for batch in batches]
        chosen = [entry.batch for entry in judged if not entry.is_spent and not entry.batch.is_control]
        masks = self._choose(chosen, keeps_old_tombstones)
        for entry in judged:
            self.counts.bytes_read += entry.batch.size_bytes
            if entry.fate is _Fate.GOES:
                continue
            count = entry.batch.count
            self.counts.records_read += count
            if entry.is_spent:
                kept, has_tombstones = np.zeros(count, bool), False
            elif entry.batch.is_control:
                kept, has_tombstones = np.ones(count, bool), False
            else:
                kept, has_tombstones = next(masks)
            yield from self._written(entry, kept, has_tombstones)

    def _judge(self, batch: CleanableBatch) -> _Judged:
        is_useless = self.transactions.see(batch)
        is_spent = is_useless
        if batch.is_control:
            horizon_ms = batch.delete_horizon_ms
            is_spent = is_useless and horizon_ms is not None and horizon_ms <= self.now_ms
        if batch.producer_id != NO_PRODUCER_ID and self._is_last_of_producer(batch):
            fate = _Fate.STAYS
        else:
            fate = _Fate.GOES if is_spent else _Fate.STAYS_WITH_RECORDS
        return _Judged(batch, fate, is_spent, is_useless and batch.is_control)

    def _is_last_of_producer(self, batch: CleanableBatch) -> bool:
        last = self.last_records.get(batch.producer_id)
        if last is None:
            return False
        if last.data_offset is None:
            return batch.is_control and batch.producer_epoch == last.epoch
        return batch.last_offset == last.data_offset

    def _choose(self, batches: Sequence[CleanableBatch], keeps_old_tombstones: bool) -> Iterator[tuple[Mask, bool]]:
        """Say for each batch which of its records stay, and whether there are tombstones among them."""
        if not batches:
            return
        records = [batch.keys() for batch in batches]
        keeps_tombstones = [self._keeps_tombstones(batch, keeps_old_tombstones) for batch in batches]
        sizes = [len(each.offsets) for each in records]
        joined = join_keys(records)
        has_key = valid_mask(joined.keys)
        found = self.map.find(self.hasher.hash(joined.keys))
        is_past = joined.offsets > self.map.latest_offset
        is_latest = has_key & (joined.offsets >= found)
        kept = is_past | (is_latest & (joined.has_value | np.repeat(keeps_tombstones, sizes)))
        self.counts.records_without_key += int(np.count_nonzero(~has_key & ~is_past))
        tombstones = kept & ~joined.has_value
        start = 0
        for size in sizes:
            rows = slice(start, start + size)
            yield kept[rows], bool(tombstones[rows].any())
            start += size

    def _keeps_tombstones(self, batch: CleanableBatch, keeps_old_tombstones: bool) -> bool:
        if isinstance(batch, MessageBatch):
            return keeps_old_tombstones
        return batch.delete_horizon_ms is None or self.now_ms < batch.delete_horizon_ms

    def _written(self, entry: _Judged, kept: Mask, has_tombstones: bool) -> Iterator[Kept]:
        batch, count = entry.batch, int(np.count_nonzero(kept))
        needs_horizon = (
            batch.magic >= _V2 and (has_tombstones or entry.is_marker_of_nothing) and batch.delete_horizon_ms is None
        )
        if not count and entry.fate is not _Fate.STAYS:
            return
        if count == len(kept) and count and not needs_horizon:
            written = Kept(batch.original(), batch.size_bytes, batch.last_offset, batch.max_timestamp)
        else:
            horizon_ms = self.now_ms + self.delete_retention_ms if needs_horizon else None
            data = batch.thinned(None if count == len(kept) else kept, horizon_ms) if count else batch.emptied()
            written = Kept(data, len(data), batch.last_offset, _max_timestamp(batch, data))
        self.counts.records_written += count
        self.counts.bytes_written += written.size_bytes
        yield written


def _max_timestamp(batch: CleanableBatch, data: bytes) -> int:
    if batch.magic >= _V2:
        return read_header(data).max_timestamp
    return MessageEntry(data, 0, len(data)).max_timestamp_ms


def join_keys(records: Sequence[RecordKeys]) -> RecordKeys:
    """Put the records of several batches together."""
    if len(records) == 1:
        return records[0]
    return RecordKeys(
        np.concatenate([each.offsets for each in records]),
        pa.concat_arrays([each.keys for each in records]),
        np.concatenate([each.has_value for each in records]),
    )
