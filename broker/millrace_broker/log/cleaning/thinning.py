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
    topic_keys: TopicKeys

    def thin(self, batches: Sequence[CleanableBatch], *, keeps_old_tombstones: bool) -> Iterator[Kept]:
        """Yield what stays of ``batches``, which are shown in the order of the log.

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
        """Say for each batch what becomes of it: None when it stays as it is, no bytes when nothing stays of it."""
        if not entries:
            return
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
        """A marker that stays, with the time from which it may go if it is of no more use."""
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
