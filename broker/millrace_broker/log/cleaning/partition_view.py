"""A partition's log as the cleaner sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.config.topic import TopicConfig
from millrace.segments.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log.cleaning.swap import CleanedSegment
from millrace_broker.log.cleaning.thinning import LastRecord
from millrace_broker.log.files import Files
from millrace_broker.log.partition import PartitionLog
from millrace_broker.log.segment import Segment


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment, for choosing and for cleaning. The active one is only looked at for its base offset and size."""

    segment: Segment

    @property
    def base_offset(self) -> int:
        """The offset that it begins with."""
        return self.segment.base_offset

    @property
    def size_bytes(self) -> int:
        """Size of its batches."""
        return self.segment.size_bytes

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read bytes of its batches."""
        return self.segment.read(position, size_bytes)

    def position_of(self, offset: int) -> int:
        """Where the first batch that ends at ``offset`` or later begins; the end, when all end before."""
        found = self.segment.find(offset)
        return self.segment.size_bytes if found is None else found[0]

    def index_bytes(self) -> tuple[int, int]:
        """Sizes of its offset and time index."""
        offset_index, time_index = self.segment.indexes()
        return len(offset_index) * OFFSET_ENTRY_BYTES, len(time_index) * TIME_ENTRY_BYTES

    def modified_ms(self) -> int:
        """When it was last written."""
        return self.segment.modified_ms()

    def largest_time_ms(self) -> int:
        """Its largest timestamp, or when it was last written where there are none."""
        largest_ms = self.segment.largest_timestamp().timestamp_ms
        return largest_ms if largest_ms >= 0 else self.segment.modified_ms()

    def first_time_ms(self) -> int:
        """Timestamp of its first batch, -1 for none."""
        return self.segment.header_at(0).max_timestamp if self.segment.size_bytes else -1


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition, for choosing and for cleaning."""

    log: PartitionLog
    files: Files

    @property
    def name(self) -> str:
        """The partition."""
        return self.log.name

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return self.log.directory

    @property
    def config(self) -> TopicConfig:
        """The topic's configuration."""
        return self.log.config

    @property
    def segments(self) -> Sequence[SegmentView]:
        """Its segments, the active one last."""
        return [SegmentView(segment) for segment in self.log.segments]

    def last_records(self) -> Mapping[int, LastRecord]:
        """The last record of each producer that is remembered."""
        return {
            entry.producer_id: LastRecord(entry.last_offset if entry.last_offset >= 0 else None, entry.epoch)
            for entry in self.log.producers
        }

    def aborted_transactions(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """Aborted transactions with records in a range of offsets, by the segments' transaction indexes."""
        return self.log.aborted_transactions(start_offset, end_offset)

    def replace(self, replaced: Sequence[SegmentView], cleaned: CleanedSegment) -> None:
        """Put a cleaned segment in the place of consecutive others."""
        self.log.replace_segments([view.segment for view in replaced], cleaned)
