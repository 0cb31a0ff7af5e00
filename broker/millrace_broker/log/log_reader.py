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
from typing import Final

from millrace.errors import CorruptBatchError, InvalidRequestError, OffsetOutOfRangeError, StorageError
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log.aborted_transactions import aborted_transactions
from millrace_broker.log.extents import Extent, cut
from millrace_broker.log.local_log import LocalLog
from millrace_broker.log.segment import Segment
from millrace_broker.log.segment_reads import find_time, read_batches
from millrace_broker.log.tiered.remote_log import RemoteLog
from millrace_broker.log.tiered.remote_segment import RemoteSegment


class LogReader:
    """The reads of one log.

    The segments are on the disk and in the remote store.
    """

    def __init__(self, local: LocalLog) -> None:
        self._local: Final = local
        self._offsets: Final = local.offsets
        self._segments: Final = local.segments
        self.remote: RemoteLog | None = None
        """The part of the log in the remote store, if the topic is tiered."""

    def read(self, start_offset: int, max_bytes: int, end: int, min_one_batch: bool) -> bytes:
        """Read as ``PartitionLog.read`` does, up to the offset ``end``, which may be above the high watermark."""
        log_end_offset = self._offsets.end
        segments = self._segments.current
        if not self._offsets.start <= start_offset <= max(log_end_offset, end):
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
            self._check_kept(start_offset, error)
            raise

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

    def _check_kept(self, offset: int, error: Exception | None = None) -> None:
        """Raise ``OffsetOutOfRangeError`` if the offset was deleted during a read, which explains its error."""
        if offset < self._offsets.start:
            raise self._out_of_range(offset) from error

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        start, end = self._offsets.start, self._offsets.end
        return OffsetOutOfRangeError(
            f"offset {offset} of {self._local.name} is not in the log, which has offsets "
            f"{start}..{end - 1} (next: {end})"
        )

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records or their marker in a range of offsets.

        Raises ``OffsetOutOfRangeError`` if the start of the range was deleted meanwhile, perhaps with its index.
        """
        try:
            segments = self._with_remote(self._segments.current, start_offset)
            found = aborted_transactions(segments, start_offset, end_offset)
        except (CorruptBatchError, StorageError) as error:
            self._check_kept(start_offset, error)
            raise
        self._check_kept(start_offset)
        return found

    # --- look-ups by time ----------------------------------------------------------------------------------

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Find the first record with a timestamp of at least ``timestamp_ms``: (offset, timestamp), or None."""
        return self._unless_deleted(lambda segments, start: self._find_time(segments, start, timestamp_ms))

    def _find_time(
        self, segments: Sequence[Segment], log_start_offset: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        for segment in segments:
            largest_ms = self._local.largest_timestamp(segment).timestamp_ms
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
        candidates = [(self._local.largest_timestamp(segment), segment) for segment in segments]
        largest, segment = max(candidates, key=lambda candidate: candidate[0].timestamp_ms)
        return find_time(segment, largest.timestamp_ms, log_start_offset) if largest.timestamp_ms >= 0 else None

    def _unless_deleted(
        self, look: Callable[[Sequence[Segment], int], tuple[int, int] | None]
    ) -> tuple[int, int] | None:
        """Look through the segments; repeat with the remaining ones if some were deleted meanwhile."""
        while True:
            log_start_offset, segments = self._offsets.start, self._segments.current
            try:
                return look(self._with_remote(segments, log_start_offset), log_start_offset)
            except (CorruptBatchError, StorageError):
                if self._segments.current is segments and self._offsets.start == log_start_offset:
                    raise

    # --- ranges --------------------------------------------------------------------------------------------

    def locate(self, start_offset: int, end_offset: int, split_bytes: int) -> list[Extent]:
        """Return the files and positions of a range of offsets, as ``PartitionLog.locate`` does."""
        high_watermark, segments = self._offsets.high_watermark, self._segments.current
        for offset in (start_offset, end_offset):
            if not self._offsets.start <= offset <= high_watermark:
                raise self._out_of_range(offset)
        if start_offset > end_offset:
            raise InvalidRequestError(f"range {start_offset}..{end_offset} of {self._local.name} ends before it starts")
        try:
            if start_offset == end_offset:
                return []
            segments = self._with_remote(segments, start_offset, end_offset)
            return cut(segments, start_offset, end_offset, split_bytes)
        except (CorruptBatchError, StorageError) as error:
            self._check_kept(start_offset, error)
            raise
