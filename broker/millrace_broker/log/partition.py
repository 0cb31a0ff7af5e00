"""The log of one partition, Kafka's ``UnifiedLog``.

Invariants:

- ``log_start_offset <= high_watermark <= log_end_offset``. All three only grow, except in a follower's truncation
  (``following``). The high watermark of an only replica is the log end offset. If records are synced before their
  acknowledgement, it is the recovery point.
- Segments are sorted by base offset and do not overlap. At least one exists, and only the last one is appended to. The
  tuple of segments is replaced, never changed, so that readers need no lock.
- The recovery point is at most the log end offset, and all records before it are synced. One thread syncs at a time. A
  failed sync is the last one, because the kernel drops the pages that it could not write, and a next sync would
  succeed.

Any thread may read (``readable``). Appends, rolls, deletions and closing take the partition's lock. A sync does not
hold that lock, but a lock of its own, which is taken first if both are needed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from millrace.errors import (
    OffsetOutOfRangeError,
    PolicyViolationError,
    StorageError,
)
from millrace.records import EndTransactionMarker
from millrace.segments.names import SNAPSHOT, segment_file_name
from millrace_broker.log.appendable import AppendResult
from millrace_broker.log.appender import SegmentAppender
from millrace_broker.log.checkpoints import LEADER_EPOCHS, write_epochs
from millrace_broker.log.cleaning.swap import CleanedSegment, CleaningAbortedError, hold_open, promote, take_place
from millrace_broker.log.following import FollowingLog
from millrace_broker.log.producer_loading import snapshot_offsets, write_snapshot_file
from millrace_broker.log.retention import SegmentFacts, count_copied, count_deletable
from millrace_broker.log.segment import Segment

_LOG: Final = logging.getLogger(__name__)


class PartitionLog(FollowingLog):
    """The log of one partition, opened by ``LogManager``."""

    # --- durability ----------------------------------------------------------------------------------------

    def append(
        self, records: bytes | bytearray, *, leader_epoch: int = 0, in_transaction: bool = False
    ) -> AppendResult:
        """Append a producer's batches, and sync them if the topic requires that before the acknowledgement.

        Raises the errors of ``append_unsynced`` and ``flush``.
        """
        result = self.append_unsynced(records, leader_epoch=leader_epoch, in_transaction=in_transaction)
        if self.must_sync(result):
            self.flush(result.last_offset + 1)
        return result

    def append_end_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        *,
        leader_epoch: int = 0,
        is_epoch_raised: bool = False,
    ) -> AppendResult:
        """Append the end marker of a producer's transaction, and sync it if the topic requires that.

        Raises the errors of ``append_end_marker_unsynced`` and ``flush``.
        """
        result = self.append_end_marker_unsynced(
            producer_id, producer_epoch, marker, leader_epoch=leader_epoch, is_epoch_raised=is_epoch_raised
        )
        assert result is not None, "it would not have to wait"
        if self.must_sync(result):
            self.flush(result.last_offset + 1)
        return result

    def must_sync(self, result: AppendResult) -> bool:
        """Return whether an append must be synced (``flush``) before its acknowledgement.

        A duplicate must be synced too, because its first copy may not be synced yet.
        """
        if result.last_offset < self._recovery_point:
            return False
        config = self._config
        return config.syncs_before_ack or self._log_end_offset - self._recovery_point >= config.flush_messages

    def flush(self, up_to: int | None = None) -> None:
        """Sync all appended records, and raise the recovery point to the log end.

        A thread that calls this during another thread's sync waits for it, and one next sync serves all waiting
        threads. With ``up_to``, nothing is done if all records before that offset are synced.

        Raises ``StorageError``. After a failed sync the content of the disk is unknown, so the partition takes no more
        appends until it is loaded again.
        """
        with self._sync_lock:
            if up_to is not None and up_to <= self._recovery_point:
                return
            with self._lock:
                self._check_online()
                end_offset, appender = self._log_end_offset, self._appender
                sealed, self._unsynced_sealed = self._unsynced_sealed, []
                self._unflushed_since = None
            try:
                self._sync(appender if end_offset > self._recovery_point else None, sealed)
            except StorageError as error:
                _LOG.error("%s: offline, a sync failed (%s)", self.name, error.message)
                self._failure = error
                raise
            with self._lock:
                self._recovery_point = end_offset
                if self._is_only_replica:
                    self._high_watermark = max(self._high_watermark, end_offset)

    def _sync(self, appender: SegmentAppender | None, sealed: Sequence[SegmentAppender]) -> None:
        for each in sealed:
            if each.segment in self._segments:  # else it is deleted, or cleaned and thereby synced
                each.sync_sealed()
        if sealed:
            self._files.sync_directory(self.directory)  # the names of the indexes; a new log syncs its own name
        if appender is not None:
            appender.sync()

    def tick(self, *, producer_expiration_ms: int) -> None:
        """Do the work that is due: flush, expire producers, remove files of deleted segments."""
        since = self._unflushed_since
        is_due = since is not None and (self._clock.monotonic() - since) * 1000 >= self._config.flush_ms
        if self._failure is None and (self._unsynced_sealed or is_due):
            self.flush()
        with self._lock:
            self._producers.expire(self._clock.now_ms(), producer_expiration_ms)
        self._deleted.remove_due()

    def close(self) -> None:
        """Close cleanly: sync the log, trim the indexes, write a producer snapshot.

        Raises ``StorageError``; the partition must then be recovered at the next start.
        """
        with self._sync_lock, self._lock:
            self._check_online()
            if self._appender is not None:
                self._appender.seal()
                self._unsynced_sealed.append(self._appender)
                self._appender = None
            self.flush()
            write_snapshot_file(self._files, self.directory, self._log_end_offset, self._producers)
            self._remove_stray_snapshots()
            self.release()

    def release(self) -> None:
        """Release all files without a write. No appends are possible afterwards."""
        with self._lock:
            self._appender = None
            self._unsynced_sealed.clear()
            self._failure = self._failure or StorageError(f"{self.name} is closed")
            for segment in self._segments:
                segment.release()

    def _remove_stray_snapshots(self) -> None:
        """Remove snapshots, except those at segment starts and the newest one."""
        kept = {segment.base_offset for segment in self._segments} | {self._log_end_offset}
        for offset in snapshot_offsets(self._files, self.directory):
            if offset not in kept:
                self._files.remove(self.directory / segment_file_name(offset, SNAPSHOT))

    # --- retention -----------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Raise the log start offset to an offset, unless it is higher already; returns the log start offset.

        Segments with no other records are deleted. The caller must write the new start before the answer.

        Raises ``PolicyViolationError`` unless the topic's policy deletes, ``OffsetOutOfRangeError`` for an offset that
        is negative or above the high watermark, ``StorageError``.
        """
        with self._lock:
            self._check_online()
            if not self._config.is_deleted:
                raise PolicyViolationError(
                    f"records of {self.name} cannot be deleted: its cleanup.policy is {self._config.cleanup_policy}. "
                    "Write tombstones, or set compact,delete"
                )
            if not 0 <= before_offset <= self._high_watermark:
                raise OffsetOutOfRangeError(
                    f"records of {self.name} can be deleted up to its high watermark {self._high_watermark}, "
                    f"not up to offset {before_offset}"
                )
            if before_offset > self._log_start_offset:
                self._start_at(before_offset)
                self._delete_segments(retention_ms=-1, retention_bytes=-1)
            return self._log_start_offset

    def apply_retention(self) -> int:
        """Delete the segments that the topic's retention allows; returns their number.

        Their files are renamed at once and removed after ``file.delete.delay.ms``, so that active readers are not
        disturbed.
        """
        with self._lock:
            if self._failure is not None:
                return 0
            config = self._config
            return self._delete_segments(
                retention_ms=config.disk_retention_ms if config.is_deleted else -1,
                retention_bytes=config.disk_retention_bytes if config.is_deleted else -1,
            )

    def _delete_segments(self, *, retention_ms: int, retention_bytes: int) -> int:
        """Delete segments by age, by size, or before the log start offset; negative limits mean none.

        In a tiered log only segments with complete copies are deleted, and the log start offset stays.
        """
        facts = self.facts()
        count = count_deletable(
            facts,
            now_ms=self._clock.now_ms(),
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            log_start_offset=self._log_start_offset,
            high_watermark=self._high_watermark,
        )
        if count == len(self._segments):
            self.roll()
        is_copied = self.remote is not None and self._config.is_copied
        if self.remote is not None and is_copied:
            count = count_copied(
                facts, count, copied_end_offset=self.remote.end_offset, log_start_offset=self._log_start_offset
            )
        if count:
            if not is_copied:
                self._start_at(max(self._log_start_offset, self._segments[count].base_offset))
            self._remove_segments(count)
        return count

    def start_at(self, offset: int) -> None:
        """Raise the log start offset to ``offset``, unless it is higher already.

        Remote retention has deleted the records before it. Raises ``StorageError``.
        """
        with self._lock:
            if offset > self._log_start_offset:
                self._start_at(min(offset, self._high_watermark))
                self._delete_segments(retention_ms=-1, retention_bytes=-1)

    def _start_at(self, offset: int) -> None:
        self._log_start_offset = offset
        if self._epochs.truncate_start(offset):
            write_epochs(self._files, self.directory / LEADER_EPOCHS, self._epochs.entries)

    def facts(self) -> list[SegmentFacts]:
        """Return the facts for retention of each segment on the disk."""
        segments = self._segments
        ends = [segment.base_offset for segment in segments[1:]] + [self._log_end_offset]
        facts = []
        for segment, end_offset in zip(segments, ends, strict=True):
            largest_ms = self._largest(segment).timestamp_ms
            facts.append(
                SegmentFacts(
                    segment.base_offset,
                    end_offset,
                    segment.size_bytes,
                    largest_ms if largest_ms >= 0 else segment.modified_ms(),
                )
            )
        return facts

    def _remove_segments(self, count: int) -> None:
        """Remove the oldest ``count`` segments: first hide them from readers, then rename their files, durably."""
        gone, self._segments = self._segments[:count], self._segments[count:]
        for segment in gone:
            segment.leave()
        for segment in gone:
            _LOG.info("%s: deleting segment %d (%s)", self.name, segment.base_offset, segment.path)
            self._deleted.rename_segment(self.directory, segment.base_offset, self._config.file_delete_delay_ms)
        self._files.sync_directory(self.directory)

    # --- compaction ----------------------------------------------------------------------------------------

    def replace_segments(self, replaced: Sequence[Segment], cleaned: CleanedSegment) -> None:
        """Replace consecutive sealed segments by a cleaned one, whose files are ready.

        Readers of the old segments continue with their files. Raises ``CleaningAbortedError`` when the segments are not
        part of the log any more, and ``StorageError``; the partition then takes no appends until it is loaded again.
        """
        with self._lock:
            if self._failure is not None or not set(replaced) <= set(self._segments[:-1]):
                raise CleaningAbortedError(f"{self.name} was changed while it was cleaned: nothing was replaced")
            hold_open(replaced)
            try:
                promote(self._files, self.directory, cleaned)
                old_bases = [segment.base_offset for segment in replaced]
                deleted = take_place(self._files, self.directory, cleaned, old_bases)
            except StorageError as error:
                self._failure = error
                raise
            first = self._segments.index(replaced[0])
            successor = self._loader().open_segment(cleaned.base_offset, cleaned.size_bytes)
            self._segments = (*self._segments[:first], successor, *self._segments[first + len(replaced) :])
            self._deleted.add(deleted, self._config.file_delete_delay_ms)
