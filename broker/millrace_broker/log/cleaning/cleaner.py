"""The cleaning of one log, Kafka's ``Cleaner.doClean``.

The dirty part, from the first dirty offset to the first uncleanable one, is read into the offset map until the map is
full. The segments before the reached offset are then copied without superseded records, group by group. The log is
clean up to that offset. Offsets, order and all later records are unchanged.

Invariants:

- A segment is replaced only when its successor is complete and on the disk.
- A cleaning from an earlier offset has the same outcome, so a crash before the checkpoint is written costs only time.
- Memory is bounded by the offset map, one chunk of batches, and the indexes of one segment. A chunk ends with the batch
  that makes it too large when decompressed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from millrace.config.topic import TopicConfig
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log.cleaning.batch_filter import BatchFilter, LastRecord
from millrace_broker.log.cleaning.batches import CleanableBatch, ReadableSegment, TopicKeys, read_chunks
from millrace_broker.log.cleaning.cleaned_segment_writer import CleanedSegmentWriter
from millrace_broker.log.cleaning.cleaner_manager import CleanableRange
from millrace_broker.log.cleaning.grouping import SegmentSizes, group
from millrace_broker.log.cleaning.key_hashes import KeyHasher
from millrace_broker.log.cleaning.map_building import MapBuilding
from millrace_broker.log.cleaning.offset_map import OffsetMap
from millrace_broker.log.cleaning.statistics import CleaningCounts, CleaningStatistics
from millrace_broker.log.cleaning.transactions import CleanedTransactions
from millrace_broker.log.files import Files
from millrace_broker.log.segment_replacement import CleanedSegment


class CleanableSegment(ReadableSegment, Protocol):
    """A segment of a log to clean."""

    @property
    def base_offset(self) -> int:
        """The base offset of the segment."""

    def position_of(self, offset: int) -> int:
        """Return the position of the batch with this offset, or of an earlier batch."""

    def index_bytes(self) -> tuple[int, int]:
        """Return the sizes of the offset index and the time index."""

    def modified_ms(self) -> int:
        """Return the time of the last write."""


SegmentT = TypeVar("SegmentT", bound=CleanableSegment)


class CleanableLog(Protocol[SegmentT]):
    """A log to clean."""

    @property
    def name(self) -> str:
        """The partition's name, for messages."""

    @property
    def directory(self) -> Path:
        """The directory of the partition's files."""

    @property
    def config(self) -> TopicConfig:
        """The topic's configuration."""

    @property
    def segments(self) -> Sequence[SegmentT]:
        """The segments, the active one last."""

    def last_records(self) -> Mapping[int, LastRecord]:
        """Return the last record of each known producer."""

    def aborted_transactions(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions with records in a range of offsets."""

    def replace(self, replaced: Sequence[SegmentT], cleaned: CleanedSegment) -> None:
        """Replace consecutive segments by a cleaned one.

        Raises ``CleaningAbortedError`` when they are no longer part of the log, ``StorageError``.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerLimits:
    """The memory limits of one cleaner thread.

    The offset map has ``map_slots`` entries of 24 bytes. ``chunk_bytes`` of batches are read at once.
    """

    map_slots: int
    map_load_factor: float
    chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaner:
    """The cleaner of one thread.

    ``use_io`` is called with the number of bytes read or written. The function may wait, or raise to stop the cleaning.
    """

    limits: CleanerLimits
    files: Files
    use_io: Callable[[int], object]

    def clean(
        self, log: CleanableLog[SegmentT], dirty: CleanableRange, keys: TopicKeys, now_ms: int
    ) -> CleaningStatistics | None:
        """Clean a log up to the end offset in the result; returns None when nothing is dirty.

        Raises ``CorruptBatchError`` for a damaged batch, ``StorageError``, ``CleaningAbortedError``. Segments that were
        replaced before stay so; the others are unchanged.
        """
        if dirty.first_dirty_offset >= dirty.first_uncleanable_offset:
            return None
        return _Cleaning(self, log, dirty, keys, now_ms).run()


class _Cleaning(Generic[SegmentT]):
    """One cleaning of one log."""

    def __init__(
        self, cleaner: Cleaner, log: CleanableLog[SegmentT], dirty: CleanableRange, keys: TopicKeys, now_ms: int
    ) -> None:
        self._cleaner: Final = cleaner
        self._log: Final = log
        self._dirty: Final = dirty
        self._keys: Final = keys
        self._counts: Final = CleaningCounts()
        self._hasher: Final = KeyHasher()
        self._offsets: Final = OffsetMap(
            cleaner.limits.map_slots,
            cleaner.limits.map_load_factor,
            expected_max=dirty.first_uncleanable_offset - dirty.first_dirty_offset,
        )
        self._transactions: Final = CleanedTransactions()
        self._batch_filter: Final = BatchFilter(
            map=self._offsets,
            hasher=self._hasher,
            transactions=self._transactions,
            last_records=log.last_records(),
            now_ms=now_ms,
            delete_retention_ms=log.config.delete_retention_ms,
            counts=self._counts,
            topic_keys=keys,
        )
        self._segments: Final = [each for each in log.segments if each.base_offset < dirty.first_uncleanable_offset]
        self._old_horizon_ms: Final = self._find_old_horizon_ms()

    def run(self) -> CleaningStatistics:
        started = time.monotonic()
        self._build_map()
        mapped = time.monotonic()
        end_offset = self._offsets.latest_offset + 1
        for group_ in self._groups(end_offset):
            self._clean_group(group_)
        return self._statistics(end_offset, mapped - started, time.monotonic() - mapped)

    def _next_offset(self, number: int) -> int:
        """Return the end offset of a segment."""
        following = number + 1
        if following < len(self._segments):
            return self._segments[following].base_offset
        return self._dirty.first_uncleanable_offset

    def _chunks(self, segment: SegmentT, position: int) -> Iterator[list[CleanableBatch]]:
        for batches in read_chunks(segment, position, self._cleaner.limits.chunk_bytes, self._keys):
            self._cleaner.use_io(sum(batch.size_bytes for batch in batches))
            yield batches

    # --- first pass ----------------------------------------------------------------------------------------

    def _build_map(self) -> None:
        start, end = self._dirty.first_dirty_offset, self._dirty.first_uncleanable_offset
        transactions = CleanedTransactions()
        transactions.expect(self._log.aborted_transactions(start, end))
        building = MapBuilding(self._offsets, self._hasher, transactions, self._counts, self._keys, start)
        for number, segment in enumerate(self._segments):
            following = self._next_offset(number)
            if following <= start:
                continue
            position = segment.position_of(start) if segment.base_offset < start else 0
            for batches in self._chunks(segment, position):
                if not building.take(batches):
                    return
            building.reach(following)

    # --- second pass ---------------------------------------------------------------------------------------

    def _groups(self, end_offset: int) -> list[list[SegmentT]]:
        segments = [segment for segment in self._segments if segment.base_offset < end_offset]
        sizes = [SegmentSizes(each.base_offset, each.size_bytes, *each.index_bytes()) for each in segments]
        cut = group(
            sizes,
            segment_bytes=self._log.config.segment_bytes,
            index_bytes=self._log.config.segment_index_bytes,
            end_offset=self._dirty.first_uncleanable_offset,
        )
        return [segments[first:end] for first, end in cut]

    def _clean_group(self, segments: list[SegmentT]) -> None:
        writer = CleanedSegmentWriter(
            self._cleaner.files, self._log.directory, segments[0].base_offset, self._log.config.index_interval_bytes
        )
        self._transactions.retained.clear()
        try:
            for segment in segments:
                self._copy(segment, writer)
            cleaned = writer.finish(self._transactions.retained, segments[-1].modified_ms())
            self._log.replace(segments, cleaned)
        except BaseException:
            writer.abandon()
            raise
        self._counts.segments_read += len(segments)
        self._counts.segments_written += 1

    def _copy(self, segment: SegmentT, writer: CleanedSegmentWriter) -> None:
        following = self._next_offset(self._segments.index(segment))
        self._transactions.expect(self._log.aborted_transactions(segment.base_offset, following))
        keeps_old_tombstones = segment.modified_ms() > self._old_horizon_ms
        for batches in self._chunks(segment, 0):
            written = writer.append(self._batch_filter.thin(batches, keeps_old_tombstones=keeps_old_tombstones))
            self._cleaner.use_io(written)

    def _find_old_horizon_ms(self) -> int:
        """Return the modification time up to which a segment's tombstones of magic 0 and 1 are removed.

        Older segments have been in the clean part for ``delete.retention.ms``.
        """
        clean = [each for each in self._segments if each.base_offset < self._dirty.first_dirty_offset]
        return clean[-1].modified_ms() - self._log.config.delete_retention_ms if clean else 0

    def _statistics(self, end_offset: int, map_seconds: float, copy_seconds: float) -> CleaningStatistics:
        counts = self._counts
        return CleaningStatistics(
            partition=self._log.name,
            start_offset=self._dirty.first_dirty_offset,
            end_offset=end_offset,
            keys=len(self._offsets),
            map_utilization=self._offsets.utilization,
            records_mapped=counts.records_mapped,
            bytes_mapped=counts.bytes_mapped,
            records_read=counts.records_read,
            bytes_read=counts.bytes_read,
            records_written=counts.records_written,
            bytes_written=counts.bytes_written,
            records_without_key=counts.records_without_key,
            segments_read=counts.segments_read,
            segments_written=counts.segments_written,
            map_seconds=map_seconds,
            copy_seconds=copy_seconds,
        )
