"""The appender of a partition's last segment.

Invariants:

- An append is all or nothing. First the batches and the entries of both indexes are written, then the new size is
  published, then the entries. A reader never sees an entry without its batch. If a write fails, the state in memory is
  unchanged, and ``undo`` truncates the files. If that fails too, no more appends are allowed.
- Index files are preallocated to ``segment.index.bytes`` (sparsely), and trimmed when the segment is sealed or closed.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.errors import StorageError
from millrace.records import BatchHeader
from millrace.segments.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, TimeEntry
from millrace.segments.transaction_index import ABORTED_ENTRY_BYTES, AbortedTransaction, pack_aborted
from millrace_broker.log.aborted_transactions import index_path
from millrace_broker.log.files import File, Files, Part
from millrace_broker.log.index_builder import Growth, IndexBuilder
from millrace_broker.log.segment import Segment

RELATIVE_OFFSET_MAX = 2**31 - 1


class SegmentAppender:
    """The appender of one segment. ``created_ms`` is the creation time of the segment, or of this appender of it."""

    def __init__(self, segment: Segment, *, index_bytes_max: int, files: Files, created_ms: int) -> None:
        self.segment = segment
        self.created_ms = created_ms
        self._index_bytes_max = index_bytes_max
        self._files = files
        self._aborted_file: File | None = None
        self._aborted_bytes = 0
        self._first_timestamp_ms = segment.header_at(0).max_timestamp if segment.size_bytes else None
        with segment.lock:  # no other thread may open or rebuild the index files meanwhile
            self._builder = self._resume(segment)
            self._file = files.open(segment.path, create=True)
            self._offset_file = files.open(segment.offset_index_path, create=True)
            self._time_file = files.open(segment.time_index_path, create=True)
            try:
                self._offset_file.truncate(_whole_entries(index_bytes_max, OFFSET_ENTRY_BYTES))
                self._time_file.truncate(_whole_entries(index_bytes_max, TIME_ENTRY_BYTES))
                self._offset_file.write(0, [bytes(self._builder.offset_bytes)])
                self._time_file.write(0, [bytes(self._builder.time_bytes)])
            except StorageError:  # without the entries the files are no indexes, and the next reader rebuilds them
                files.remove(segment.offset_index_path)
                files.remove(segment.time_index_path)
                raise
            segment.grow(self._file, self._builder.offset_index, self._builder.time_index)

    @staticmethod
    def _resume(segment: Segment) -> IndexBuilder:
        builder = IndexBuilder(segment.base_offset, segment.index_interval_bytes)
        if segment.size_bytes:
            segment.find(segment.base_offset + RELATIVE_OFFSET_MAX)  # checks the last offset entry against the log
            segment.largest_timestamp()  # checks the last time entry
            offset_index, time_index = segment.indexes()
            builder.resume(bytes(offset_index.buffer), bytes(time_index.buffer))
            start = offset_index[len(offset_index) - 1].position if len(offset_index) else 0
            for position, header in segment.batches(start):
                builder.add(position, header)
        return builder

    @property
    def largest(self) -> TimeEntry:
        """The largest timestamp in the segment, and the last offset of the first batch that has it."""
        return self._builder.largest

    def must_roll(
        self, *, size_bytes: int, last_offset: int, max_timestamp_ms: int, now_ms: int, segment_bytes: int, age_ms: int
    ) -> bool:
        """Return whether these batches need a new segment (Kafka's ``LogSegment.shouldRoll``).

        An empty segment needs none, unless the batches are too far from its base offset. The segment's age is the
        difference between the timestamps of its first batch and of these batches. The clock counts if there are no
        timestamps.
        """
        segment = self.segment
        is_far = last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        if is_far or not segment.size_bytes:
            return is_far
        if self._first_timestamp_ms is not None and self._first_timestamp_ms >= 0:
            waited_ms = max_timestamp_ms - self._first_timestamp_ms
        else:
            waited_ms = now_ms - self.created_ms
        return (
            segment.size_bytes > segment_bytes - size_bytes
            or waited_ms > age_ms
            or len(self._builder.offset_index) >= self._index_bytes_max // OFFSET_ENTRY_BYTES
            or len(self._builder.time_index) >= self._index_bytes_max // TIME_ENTRY_BYTES - 1
        )

    def append(
        self, parts: Sequence[Part], headers: Sequence[BatchHeader], aborted: Sequence[AbortedTransaction] = ()
    ) -> None:
        """Write batches, whose ``headers`` have offsets, and publish them; ``aborted`` are the transactions they abort.

        After a ``StorageError`` the caller must call ``undo`` before the next append.
        """
        position = self.segment.size_bytes
        growth = self._builder.growth(position, headers)
        self._file.write(position, parts)
        self._write_entries(growth)
        if aborted:
            self._write_aborted(aborted)
        if self._first_timestamp_ms is None:
            self._first_timestamp_ms = headers[0].max_timestamp
        self.segment.publish(position + sum(header.size_bytes for header in headers), headers[-1])
        self._builder.take(growth)

    def undo(self) -> None:
        """Truncate the files to the published bytes after a failed append."""
        self._file.truncate(self.segment.size_bytes)
        if self._aborted_file is not None:
            self._aborted_file.truncate(self._aborted_bytes)

    def sync(self) -> None:
        """Make the appended batches survive a power failure.

        Indexes are not synced while the segment grows, because recovery rebuilds those of the last segment. The sync
        uses the file descriptor of the writes, because the kernel reports each write-back error to that one.
        """
        self._file.sync()

    def sync_sealed(self) -> None:
        """Make a sealed segment and its indexes survive a power failure; the caller syncs the directory."""
        for file in (self._file, self._offset_file, self._time_file, self._aborted_file):
            if file is not None:
                file.sync()

    def _write_aborted(self, aborted: Sequence[AbortedTransaction]) -> None:
        """Append entries to the transaction index; the first entry creates the file."""
        if self._aborted_file is None:
            path = index_path(self.segment.path.parent, self.segment.base_offset)
            self._aborted_file = self._files.open(path, create=True)
            self._aborted_bytes = _whole_entries(self._aborted_file.size_bytes(), ABORTED_ENTRY_BYTES)
        entries = b"".join(pack_aborted(transaction) for transaction in aborted)
        self._aborted_file.write(self._aborted_bytes, [entries])
        self._aborted_bytes += len(entries)

    def _write_entries(self, growth: Growth) -> None:
        """Append new entries to the index files."""
        if growth.offset_entries:
            self._offset_file.write(len(self._builder.offset_bytes), [growth.offset_entries])
        if growth.time_entries:
            self._time_file.write(len(self._builder.time_bytes), [growth.time_entries])

    def seal(self) -> None:
        """Add the last entry of the time index and trim the files; reads use the segment's own files from now on."""
        growth = self._builder.last_growth()
        self._write_entries(growth)
        self._builder.take(growth)
        self._offset_file.truncate(len(self._builder.offset_bytes))
        self._time_file.truncate(len(self._builder.time_bytes))
        self._file.truncate(self.segment.size_bytes)
        self.segment.release()


def _whole_entries(size_bytes: int, entry_bytes: int) -> int:
    return size_bytes // entry_bytes * entry_bytes
