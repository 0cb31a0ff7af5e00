"""The rule for index entries that appends and rebuilds share (Kafka's ``LogSegment.append``).

A batch gets an entry in both indexes when more than ``index.interval.bytes`` of batches came since the last entry. The
time index gets the entry only if the largest timestamp has grown. The time index gets a last entry when the segment is
sealed, so that its last entry always holds the segment's largest timestamp.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from millrace.errors import DiskFullError
from millrace.records.header import NO_TIMESTAMP, BatchHeader
from millrace.segments.indexes import OffsetIndex, TimeEntry, TimeIndex, pack_offset_entry, pack_time_entry
from millrace_broker.log.files import Files, replace_file

_LOG: Final = logging.getLogger(__name__)


class IndexedBatch(Protocol):
    """The fields of a batch that indexes need; a ``BatchHeader`` has them."""

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch."""

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the batch once had."""

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in ms, -1 for none."""


class Growth(NamedTuple):
    """The index entries that some batches add.

    ``largest`` and ``bytes_since_entry`` are the builder's state after the last batch.
    """

    offset_entries: bytes
    time_entries: bytes
    largest: TimeEntry
    bytes_since_entry: int


class Mark(NamedTuple):
    """A saved state of an ``IndexBuilder``."""

    offset_bytes: int
    time_bytes: int
    largest: TimeEntry
    bytes_since_entry: int


class IndexBuilder:
    """Both indexes of a growing segment, in memory.

    ``largest`` is the largest timestamp so far with the last offset of the first batch that has it.
    """

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.offset_bytes = bytearray()
        self.time_bytes = bytearray()
        self.offset_index = OffsetIndex(self.offset_bytes, base_offset)
        self.time_index = TimeIndex(self.time_bytes, base_offset)
        self.largest = TimeEntry(NO_TIMESTAMP, base_offset)
        self.bytes_since_entry = 0

    def resume(self, offset_entries: bytes, time_entries: bytes) -> None:
        """Start from the entries of a segment's files; the caller adds the batches after the last entry with
        ``add``.
        """
        self.offset_bytes[:] = offset_entries
        self.time_bytes[:] = time_entries
        self.largest = self.time_index.last()
        self.bytes_since_entry = 0

    def growth(self, position: int, headers: Iterable[IndexedBatch]) -> Growth:
        """Return the growth by the batches at ``position``, which follow the last batch of the indexes."""
        largest, bytes_since_entry = self.largest, self.bytes_since_entry
        indexed_ms = self.time_index.last().timestamp_ms
        offset_entries, time_entries = bytearray(), bytearray()
        for header in headers:
            if header.max_timestamp > largest.timestamp_ms:
                largest = TimeEntry(header.max_timestamp, header.last_offset)
            if bytes_since_entry > self.interval_bytes:
                offset_entries += pack_offset_entry(header.last_offset - self.base_offset, position)
                if largest.timestamp_ms > indexed_ms:
                    time_entries += self._pack_time(largest)
                    indexed_ms = largest.timestamp_ms
                bytes_since_entry = 0
            bytes_since_entry += header.size_bytes
            position += header.size_bytes
        return Growth(bytes(offset_entries), bytes(time_entries), largest, bytes_since_entry)

    def last_growth(self) -> Growth:
        """Return the growth at the end of the segment: an entry for the largest timestamp."""
        is_new = self.largest.timestamp_ms > self.time_index.last().timestamp_ms
        return Growth(b"", self._pack_time(self.largest) if is_new else b"", self.largest, self.bytes_since_entry)

    def _pack_time(self, entry: TimeEntry) -> bytes:
        return pack_time_entry(entry.timestamp_ms, entry.offset - self.base_offset)

    def take(self, growth: Growth) -> None:
        """Apply a growth."""
        self.offset_bytes += growth.offset_entries
        self.time_bytes += growth.time_entries
        self.largest, self.bytes_since_entry = growth.largest, growth.bytes_since_entry

    def add(self, position: int, header: BatchHeader) -> None:
        """Add the batch at ``position``, which follows the last batch of the indexes."""
        self.take(self.growth(position, (header,)))

    def finish(self) -> None:
        """Add the entry for the largest timestamp at the end of the segment."""
        self.take(self.last_growth())

    def mark(self) -> Mark:
        """Return the present state."""
        return Mark(len(self.offset_bytes), len(self.time_bytes), self.largest, self.bytes_since_entry)

    def reset(self, mark: Mark) -> None:
        """Go back to a saved state."""
        del self.offset_bytes[mark.offset_bytes :], self.time_bytes[mark.time_bytes :]
        self.largest, self.bytes_since_entry = mark.largest, mark.bytes_since_entry

    def write(self, files: Files, offset_index_path: Path, time_index_path: Path) -> None:
        """Replace both index files by these entries.

        On a full disk the files are removed instead. The segment's next reader rebuilds its indexes.
        """
        try:
            replace_file(files, offset_index_path, bytes(self.offset_bytes))
            replace_file(files, time_index_path, bytes(self.time_bytes))
        except DiskFullError as error:
            _LOG.warning("the indexes of a segment are not stored: %s", error.message)
            files.remove(offset_index_path)
            files.remove(time_index_path)
            files.sync_directory(offset_index_path.parent)
