"""The lock-free reads and look-ups of a partition's log.

Any thread may use them.

Invariant: A reader takes the state in an order that is safe beside a writer, which publishes in the opposite order.
First comes the log end offset, then the tuple of segments, which has all records before that end. Last comes the log
start offset, which rises before segments are removed. So a look-up of an offset in the log finds it, or finds that it
was deleted.

Older segments of a tiered log are only in the remote store. A reader looks for them after the local ones. A local
segment is removed only after its copy is complete. A copy is removed only after the log start offset has risen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from millrace.errors import CorruptBatchError, InvalidRequestError, OffsetOutOfRangeError, StorageError
from millrace.segments.indexes import TimeEntry
from millrace.segments.names import partition_directory_name
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log.aborted import aborted_transactions
from millrace_broker.log.appender import SegmentAppender
from millrace_broker.log.extents import Extent, cut
from millrace_broker.log.files import Files
from millrace_broker.log.producers import CompletedTransaction
from millrace_broker.log.reading import find_time, read_batches
from millrace_broker.log.segment import Segment
from millrace_broker.log.tiered.remote_log import RemoteLog
from millrace_broker.log.tiered.remote_segment import RemoteSegment


class ReadableLog:
    """A partition's log with its reads. ``PartitionLog`` sets and replaces the attributes."""

    _segments: tuple[Segment, ...]
    _log_start_offset: int
    _log_end_offset: int
    _high_watermark: int
    _files: Files
    _first_open_offset: int | None
    """The first offset of the first open transaction."""
    _ended: tuple[CompletedTransaction, ...] = ()
    """Transactions with end markers that consumers may not be able to read yet."""
    _is_only_replica: bool = True
    """Whether the high watermark follows the log end, because there is no other replica."""

    def __init__(self, topic: str, topic_id: UUID, partition: int, directory: Path) -> None:
        self.topic: Final = topic
        self.topic_id: Final = topic_id
        self.partition: Final = partition
        self.directory: Final = directory
        self._appender: SegmentAppender | None = None
        self.remote: RemoteLog | None = None
        """The part of the log in the remote store, if the topic is tiered."""
        self.is_led_here = True
        """Whether this broker leads the partition; only the leader changes the copies in the remote store."""

    @property
    def name(self) -> str:
        """``topic-partition``, as in the directory's name and in messages."""
        return partition_directory_name(self.topic, self.partition)

    @property
    def log_start_offset(self) -> int:
        """The offset of the first remaining record."""
        return self._log_start_offset

    @property
    def high_watermark(self) -> int:
        """The offset before which all in-sync replicas have all records; consumers read up to it.

        If records are synced before their acknowledgement, only synced records count. It goes back only in a
        truncation.
        """
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset before which every transaction is decided, by a marker that is readable."""
        high_watermark, open_offset = self._high_watermark, self._first_open_offset
        unstable = [each.first_offset for each in self._ended if each.last_offset >= high_watermark]
        return min(high_watermark, *unstable, high_watermark if open_offset is None else open_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records or their marker in ``start_offset..end_offset`` (exclusive).

        Raises ``CorruptBatchError`` for an index that does not agree with the log, ``StorageError``.
        """
        return aborted_transactions(self._with_remote(self._segments, start_offset), start_offset, end_offset)

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._log_end_offset

    @property
    def size_bytes(self) -> int:
        """The size of all segments, without indexes."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def first_base_offset(self) -> int:
        """The base offset of the first segment; the log may start inside that segment."""
        return self._segments[0].base_offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The present segments; appends go to the last one."""
        return self._segments

    @property
    def segment_count(self) -> int:
        """The number of segments."""
        return len(self._segments)

    def read(
        self, start_offset: int, max_bytes: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> bytes:
        """Read whole batches, from the one with ``start_offset`` up to ``max_bytes`` or ``end_offset``.

        The first batch may begin before ``start_offset``, and the last may end after ``end_offset`` (exclusive, by
        default the high watermark). With ``min_one_batch`` the first batch is returned even if it is larger than
        ``max_bytes``. Returns no bytes if there are no records. A read ends with its segment; more records may follow.

        Raises ``OffsetOutOfRangeError``, and ``CorruptBatchError`` or ``StorageError`` when the disk lost data.
        """
        end = self.high_watermark if end_offset is None else min(end_offset, self.high_watermark)
        return self._read(start_offset, max_bytes, end, min_one_batch)

    def read_to_end(self, start_offset: int, max_bytes: int, *, min_one_batch: bool = True) -> bytes:
        """Read like ``read``, also after the high watermark; for replicas and other readers of unacknowledged
        records.
        """
        return self._read(start_offset, max_bytes, self._log_end_offset, min_one_batch)

    def _read(self, start_offset: int, max_bytes: int, end: int, min_one_batch: bool) -> bytes:
        log_end_offset = self._log_end_offset
        segments = self._segments
        if not self._log_start_offset <= start_offset <= max(log_end_offset, end):
            raise self._out_of_range(start_offset)
        if start_offset >= end:
            return b""
        try:
            segments = self._with_remote(segments, start_offset, start_offset + 1)
            if isinstance(segments[0], RemoteSegment):
                segments[0].prepare(start_offset, max_bytes)
            return read_batches(
                segments, start_offset, end, max_bytes, log_end_offset=log_end_offset, min_one_batch=min_one_batch
            )
        except (CorruptBatchError, StorageError) as error:
            if start_offset < self._log_start_offset:  # retention was faster
                raise self._out_of_range(start_offset) from error
            raise

    def is_remote(self, offset: int) -> bool:
        """Return whether records at an offset must be fetched from the remote store, which is slow."""
        return self.remote is not None and offset < self._segments[0].base_offset

    def _with_remote(
        self, local: tuple[Segment, ...], start_offset: int, end_offset: int | None = None
    ) -> tuple[Segment, ...]:
        """Return the segments from ``start_offset`` on, including those that are only in the remote store.

        Raises ``RemoteStorageError`` while the store has not answered, and ``CorruptBatchError`` if records before
        ``end_offset`` are in neither place.
        """
        remote, local_base_offset = self.remote, local[0].base_offset
        if remote is None or start_offset >= local_base_offset:
            return local
        found = remote.before(local_base_offset, start_offset)
        if end_offset is not None:
            remote.check_complete(start_offset, end_offset, local_base_offset)
        return (*found, *local)

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"offset {offset} of {self.name} is not in the log, which has offsets "
            f"{self._log_start_offset}..{self._log_end_offset - 1} (next: {self._log_end_offset})"
        )

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Find the first record with a timestamp of at least ``timestamp_ms``: (offset, timestamp), or None."""
        return self._unless_deleted(lambda segments, start: self._find_time(segments, start, timestamp_ms))

    def _find_time(
        self, segments: Sequence[Segment], log_start_offset: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        for segment in segments:
            largest_ms = self._largest(segment).timestamp_ms
            if largest_ms >= timestamp_ms:
                found = find_time(segment, timestamp_ms, log_start_offset)
                if found is not None:
                    return found
            elif largest_ms < 0 and segment.size_bytes and segment.modified_ms() >= timestamp_ms:
                return None  # records without timestamps, of about that time; report it as unknown, like Kafka
        return None

    def max_timestamp_offset(self) -> tuple[int, int] | None:
        """Find the first record with the log's largest timestamp: (offset, timestamp); None in an empty log."""
        return self._unless_deleted(self._find_largest)

    def _find_largest(self, segments: Sequence[Segment], log_start_offset: int) -> tuple[int, int] | None:
        candidates = [(self._largest(segment), segment) for segment in segments]
        largest, segment = max(candidates, key=lambda candidate: candidate[0].timestamp_ms)
        return find_time(segment, largest.timestamp_ms, log_start_offset) if largest.timestamp_ms >= 0 else None

    def _unless_deleted(
        self, look: Callable[[Sequence[Segment], int], tuple[int, int] | None]
    ) -> tuple[int, int] | None:
        """Look through the segments; repeat with the remaining ones if some were deleted meanwhile."""
        while True:
            log_start_offset, segments = self._log_start_offset, self._segments
            try:
                return look(self._with_remote(segments, log_start_offset), log_start_offset)
            except (CorruptBatchError, StorageError):
                if self._segments is segments and self._log_start_offset == log_start_offset:
                    raise

    def _largest(self, segment: Segment) -> TimeEntry:
        appender = self._appender
        if appender is not None and appender.segment is segment:
            return appender.largest
        return segment.largest_timestamp()

    def locate(self, start_offset: int, end_offset: int, split_bytes: int = 0) -> list[Extent]:
        """Return the files and positions of a range of offsets, cut to about ``split_bytes`` (0: per segment).

        The extents tile ``start_offset..end_offset`` (exclusive) exactly; there are none for an empty range. Raises
        ``OffsetOutOfRangeError`` when the range is not between log start and high watermark.
        """
        high_watermark, segments = self.high_watermark, self._segments
        for offset in (start_offset, end_offset):
            if not self._log_start_offset <= offset <= high_watermark:
                raise self._out_of_range(offset)
        if start_offset > end_offset:
            raise InvalidRequestError(f"range {start_offset}..{end_offset} of {self.name} ends before it starts")
        try:
            if start_offset == end_offset:
                return []
            segments = self._with_remote(segments, start_offset, end_offset)
            return cut(segments, start_offset, end_offset, split_bytes)
        except (CorruptBatchError, StorageError) as error:
            if start_offset < self._log_start_offset:  # retention was faster
                raise self._out_of_range(start_offset) from error
            raise
