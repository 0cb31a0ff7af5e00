"""A partition's log for the cleaner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.config.topic import TopicConfig
from millrace.segments.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log.aborted_transactions import aborted_transactions
from millrace_broker.log.cleaning.batch_filter import LastRecord
from millrace_broker.log.files import Files
from millrace_broker.log.partition_log import PartitionLog
from millrace_broker.log.segment import Segment
from millrace_broker.log.segment_replacement import CleanedSegment


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment for the choice and for cleaning. Of the active segment only base offset and size are used."""

    segment: Segment

    @property
    def base_offset(self) -> int:
        """The base offset of the segment."""
        return self.segment.base_offset

    @property
    def size_bytes(self) -> int:
        """The size of its batches."""
        return self.segment.size_bytes

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read bytes of its batches."""
        return self.segment.read(position, size_bytes)

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch that ends at ``offset`` or later; the end, when all end before."""
        found = self.segment.find(offset)
        return self.segment.size_bytes if found is None else found[0]

    def index_bytes(self) -> tuple[int, int]:
        """Return the sizes of the offset index and the time index."""
        offset_index, time_index = self.segment.indexes()
        return len(offset_index) * OFFSET_ENTRY_BYTES, len(time_index) * TIME_ENTRY_BYTES

    def modified_ms(self) -> int:
        """Return the time of the last write."""
        return self.segment.modified_ms()

    def largest_time_ms(self) -> int:
        """Return the largest timestamp, or the time of the last write if there are no timestamps."""
        largest_ms = self.segment.largest_timestamp().timestamp_ms
        return largest_ms if largest_ms >= 0 else self.segment.modified_ms()

    def first_time_ms(self) -> int:
        """Return the timestamp of the first batch, -1 for none."""
        return self.segment.header_at(0).max_timestamp if self.segment.size_bytes else -1


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition for the choice and for cleaning."""

    log: PartitionLog
    files: Files

    @property
    def name(self) -> str:
        """The partition's name."""
        return self.log.name

    @property
    def directory(self) -> Path:
        """The directory of the partition's files."""
        return self.log.directory

    @property
    def config(self) -> TopicConfig:
        """The topic's configuration."""
        return self.log.config

    @property
    def segments(self) -> Sequence[SegmentView]:
        """The segments, the active one last."""
        return [SegmentView(segment) for segment in self.log.segments]

    def last_records(self) -> Mapping[int, LastRecord]:
        """Return the last record of each known producer."""
        return {
            entry.producer_id: LastRecord(entry.last_offset if entry.last_offset >= 0 else None, entry.epoch)
            for entry in self.log.producers
        }

    def aborted_transactions(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions with records in a range of offsets, by the segments' transaction indexes.

        The range may start below the log start, because whole segments are cleaned.
        """
        return aborted_transactions(self.log.segments, start_offset, end_offset)

    def replace(self, replaced: Sequence[SegmentView], cleaned: CleanedSegment) -> None:
        """Replace consecutive segments by a cleaned one."""
        self.log.replace_segments([view.segment for view in replaced], cleaned)
