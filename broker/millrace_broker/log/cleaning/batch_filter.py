"""The second pass of a cleaning (Kafka's ``Cleaner.cleanInto``).

``BatchFilter`` decides which records of each batch stay. A record stays if no later record of its key is known, and it
has a value or is a tombstone within its retention. A record without a key is removed, because no later record can
replace it. Records beyond the offset map stay. Data of aborted transactions is removed. Markers of transactions without
remaining batches are removed after their retention. The batch with the last sequence number of an active producer
stays, even if it is empty. A marker that is the only remaining batch of a producer stays too.

A batch may have tombstones, or a marker that is no longer needed. When it is first cleaned, it gets a *delete horizon*
in its base timestamp (KIP-534). Tombstones and marker may be removed from that time on. Batches of magic 0 and 1 have
no field for a delete horizon, so the age of the segment's file decides there.

Batches that lose nothing are passed on byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

import numpy as np

from millrace.records import NO_PRODUCER_ID, MessageEntry, read_header
from millrace_broker.log.cleaning.batches import CleanableBatch, MessageBatch, TopicKeys
from millrace_broker.log.cleaning.chunks import Chunk
from millrace_broker.log.cleaning.key_hashes import KeyHasher, valid_mask
from millrace_broker.log.cleaning.offset_map import OffsetMap
from millrace_broker.log.cleaning.row_runs import Rewriting
from millrace_broker.log.cleaning.statistics import CleaningCounts
from millrace_broker.log.cleaning.transactions import CleanedTransactions

_V2: Final = 2


class LastRecord(NamedTuple):
    """The last record of an active producer, Kafka's ``LastRecord``.

    ``data_offset`` is the offset of the last data, and None if only a marker is left.
    """

    data_offset: int | None
    epoch: int


class Kept(NamedTuple):
    """A batch that stays: its bytes, and its fields for the indexes."""

    data: bytes | memoryview
    size_bytes: int
    last_offset: int
    max_timestamp: int


class _Fate(Enum):
    GOES = auto()
    STAYS_WITH_RECORDS = auto()
    STAYS = auto()


class _Judged(NamedTuple):
    """A decision on a batch.

    ``is_spent`` means that none of its records is needed. ``is_marker_of_nothing`` means that the transaction of its
    marker has no batch left.
    """

    batch: CleanableBatch
    fate: _Fate
    is_spent: bool
    is_marker_of_nothing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFilter:
    """The rules of one cleaning."""

    map: OffsetMap
    hasher: KeyHasher
    transactions: CleanedTransactions
    last_records: Mapping[int, LastRecord]
    now_ms: int
    delete_retention_ms: int
    counts: CleaningCounts
    topic_keys: TopicKeys

    def thin(self, batches: Sequence[CleanableBatch], *, keeps_old_tombstones: bool) -> Iterator[Kept]:
        """Yield the remaining part of each of ``batches``, which come in the order of the log.

        ``keeps_old_tombstones`` is for messages of magic 0 and 1.
        """
        judged = [self._judge(batch) for batch in batches]
        chosen = [entry for entry in judged if not entry.is_spent and not entry.batch.is_control and entry.batch.count]
        rewritten = iter(self._choose(chosen, keeps_old_tombstones))
        for entry in judged:
            batch = entry.batch
            self.counts.bytes_read += batch.size_bytes
            if entry.fate is _Fate.GOES:
                continue
            self.counts.records_read += batch.count
            data: bytes | None
            if entry.is_spent or not batch.count:
                data = b""
            elif batch.is_control:
                data = self._marker(entry)
            else:
                data = next(rewritten)
            if data == b"" and entry.fate is _Fate.STAYS:
                data = batch.emptied()
            if data != b"":
                yield self._written(batch, data)

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

    def _choose(self, entries: Sequence[_Judged], keeps_old_tombstones: bool) -> Iterator[bytes | None]:
        """Yield the new bytes of each batch.

        There is at least one batch. Yields None for an unchanged batch, and no bytes if no record stays.
        """
        batches = [entry.batch for entry in entries]
        chunk = Chunk(batches, self.topic_keys)
        keeps_tombstones = [self._keeps_tombstones(batch, keeps_old_tombstones) for batch in batches]
        has_key = valid_mask(chunk.keys)
        is_past = chunk.offsets > self.map.latest_offset
        is_latest = has_key & (chunk.offsets >= self.map.find(self.hasher.hash(chunk.keys)))
        kept = is_past | (is_latest & (chunk.has_value | np.repeat(keeps_tombstones, chunk.sizes)))
        self.counts.records_without_key += int(np.count_nonzero(~has_key & ~is_past))
        starts = np.cumsum([0, *chunk.sizes[:-1]])
        counts = np.add.reduceat(kept, starts, dtype=np.int64).tolist()
        tombstones = np.add.reduceat(kept & ~chunk.has_value, starts, dtype=np.int64).tolist()
        self.counts.records_written += sum(counts)
        wanted = []
        for number, (batch, start, size) in enumerate(zip(batches, starts.tolist(), chunk.sizes, strict=True)):
            needs_horizon = tombstones[number] and batch.magic >= _V2 and batch.delete_horizon_ms is None
            if counts[number] and (counts[number] < size or needs_horizon):
                horizon_ms = self.now_ms + self.delete_retention_ms if needs_horizon else None
                wanted.append(Rewriting(number, kept[start : start + size], horizon_ms))
        rewritten = chunk.rewrite(wanted)
        for number, count in enumerate(counts):
            yield rewritten.get(number) if count else b""

    def _marker(self, entry: _Judged) -> bytes | None:
        """Return a marker that stays, with a delete horizon if it is no longer needed."""
        self.counts.records_written += entry.batch.count
        if entry.is_marker_of_nothing and entry.batch.delete_horizon_ms is None:
            return entry.batch.thinned(None, self.now_ms + self.delete_retention_ms)
        return None

    def _written(self, batch: CleanableBatch, data: bytes | None) -> Kept:
        if data is None:
            kept = Kept(batch.original(), batch.size_bytes, batch.last_offset, batch.max_timestamp)
        else:
            kept = Kept(data, len(data), batch.last_offset, _max_timestamp(batch, data))
        self.counts.bytes_written += kept.size_bytes
        return kept

    def _keeps_tombstones(self, batch: CleanableBatch, keeps_old_tombstones: bool) -> bool:
        if isinstance(batch, MessageBatch):
            return keeps_old_tombstones
        return batch.delete_horizon_ms is None or self.now_ms < batch.delete_horizon_ms


def _max_timestamp(batch: CleanableBatch, data: bytes) -> int:
    if batch.magic >= _V2:
        return read_header(data).max_timestamp
    return MessageEntry(data, 0, len(data)).max_timestamp_ms
