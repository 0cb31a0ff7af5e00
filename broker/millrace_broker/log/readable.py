"""The half of a partition's log that any thread may use without a lock: reading and looking up.

Invariant: what is needed is taken in the order that is safe beside a writer, who publishes the other way round. First
the end of the log, then the tuple of segments, which holds everything before that end; last the start of the log, which
moves before segments go. So a look that began with an offset in the log finds it, or finds that it was deleted.

Of a tiered log older segments are in the remote store only. They are looked for after the local ones were, for those go
only once they are there; and they go from there after the start of the log has moved.
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
    """A partition's log as its readers see it. ``PartitionLog`` sets and replaces what it holds."""

    _segments: tuple[Segment, ...]
    _log_start_offset: int
    _log_end_offset: int
    _high_watermark: int
    _files: Files
    _first_open_offset: int | None
    """Where the first transaction began that has not ended."""
    _ended: tuple[CompletedTransaction, ...] = ()
    """Transactions whose markers consumers may not be able to read yet."""
    _is_only_replica: bool = True
    """Whether the high watermark follows the end of the log, for there is no other replica to wait for."""

    def __init__(self, topic: str, topic_id: UUID, partition: int, directory: Path) -> None:
        self.topic: Final = topic
        self.topic_id: Final = topic_id
        self.partition: Final = partition
        self.directory: Final = directory
        self._appender: SegmentAppender | None = None
        self.remote: RemoteLog | None = None
        """What of it is in the remote store, if the topic is tiered."""
        self.is_led_here = True
        """Whether this broker leads the partition: it alone changes what the remote store has of it."""

    @property
    def name(self) -> str:
        """``topic-partition``, as the directory is called and messages say it."""
        return partition_directory_name(self.topic, self.partition)

    @property
    def log_start_offset(self) -> int:
        """Offset of the first record that is still there."""
        return self._log_start_offset

    @property
    def high_watermark(self) -> int:
        """Offset before which every in-sync replica has everything: what consumers may read.

        Where records are synced before they are acknowledged, only what is synced counts. It goes back only where
        records have been truncated away.
        """
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Offset before which no transaction is undecided, nor decided by a marker that may not be read yet."""
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
        """Offset that the next record gets."""
        return self._log_end_offset

    @property
    def size_bytes(self) -> int:
        """Size of all segments, without indexes."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def first_base_offset(self) -> int:
        """Base offset of the first segment, which the log may start inside of."""
        return self._segments[0].base_offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments as they are now, the one that is written to last."""
        return self._segments

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    def read(
        self, start_offset: int, max_bytes: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> bytes:
        """Read whole batches, from the one that holds ``start_offset`` up to ``max_bytes`` or ``end_offset``.

        The first batch may begin before ``start_offset`` and the last end after ``end_offset`` (exclusive, by default
        the high watermark). ``min_one_batch`` gives a first batch even if it is larger than ``max_bytes``. Empty when
        there is nothing. A read ends with its segment: more may follow.

        Raises ``OffsetOutOfRangeError``, and ``CorruptBatchError`` or ``StorageError`` when the disk lost data.
        """
        end = self.high_watermark if end_offset is None else min(end_offset, self.high_watermark)
        return self._read(start_offset, max_bytes, end, min_one_batch)

    def read_to_end(self, start_offset: int, max_bytes: int, *, min_one_batch: bool = True) -> bytes:
        """As ``read``, beyond the high watermark too: for other replicas, and who may see what is not acknowledged."""
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
        """Whether what is at an offset has to be fetched from the remote store, which takes its time."""
        return self.remote is not None and offset < self._segments[0].base_offset

    def _with_remote(
        self, local: tuple[Segment, ...], start_offset: int, end_offset: int | None = None
    ) -> tuple[Segment, ...]:
        """The segments from ``start_offset`` on, also those that are in the remote store only.

        Raises ``RemoteStorageError`` while the store has not answered, and ``CorruptBatchError`` if something before
        ``end_offset`` is nowhere.
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
        """Find the first record whose timestamp is at least ``timestamp_ms``: (offset, timestamp); None if none is."""
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
                return None  # records without timestamps, of about that time: as Kafka, say that it is not known
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
        """Look through the segments, and again through the rest of them if some were deleted under the look."""
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
        """Say what files and positions a range of offsets is made of, cut to about ``split_bytes`` (0: per segment).

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
