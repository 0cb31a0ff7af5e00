"""The deletion of a log's oldest segments (Kafka's ``UnifiedLog.deleteOldSegments``).

``retention`` decides which segments may be deleted.

Invariants:

- The log start offset rises before segments are removed, and segments are hidden from readers before their files are
  renamed.
- Nothing is written before segments are removed, because the disk may be full.
- A segment with records at or after the high watermark stays. In a tiered log a segment without a complete copy stays.

The ``remote`` argument is the part of the log in the remote store, None for a log that is not tiered.
"""

from __future__ import annotations

import logging
from typing import Final

from millrace.errors import CorruptBatchError, DiskFullError, OffsetOutOfRangeError, PolicyViolationError
from millrace_broker.log.leader_epoch_cache import LeaderEpochFileCache
from millrace_broker.log.local_log import LocalLog
from millrace_broker.log.producer_state_manager import ProducerStateManager
from millrace_broker.log.retention import SegmentFacts, count_copied, count_deletable
from millrace_broker.log.segment import Segment
from millrace_broker.log.tiered.remote_log import RemoteLog

_LOG: Final = logging.getLogger(__name__)
_UNLIMITED: Final = -1


class SegmentDeletion:
    """The deletion of the oldest segments of one log."""

    def __init__(self, local: LocalLog, epoch_cache: LeaderEpochFileCache, producers: ProducerStateManager) -> None:
        self._local: Final = local
        self._offsets: Final = local.offsets
        self._segments: Final = local.segments
        self._epoch_cache: Final = epoch_cache
        self._producers: Final = producers

    def delete_records(self, before_offset: int, remote: RemoteLog | None) -> int:
        """Delete records as ``PartitionLog.delete_records`` does; returns the log start offset."""
        local, offsets = self._local, self._offsets
        with local.lock:
            local.check_online()
            if local.config.is_compacted and not local.config.is_deleted:
                raise PolicyViolationError(
                    f"records of {local.name} cannot be deleted, because its cleanup.policy is "
                    f"{local.config.cleanup_policy}: write tombstones, or set cleanup.policy=compact,delete"
                )
            if not 0 <= before_offset <= offsets.high_watermark:
                raise OffsetOutOfRangeError(
                    f"records of {local.name} can be deleted up to its high watermark {offsets.high_watermark}, "
                    f"not up to offset {before_offset}"
                )
            self._raise_start(before_offset, remote)
            return offsets.start

    def raise_start(self, offset: int, remote: RemoteLog | None) -> None:
        """Raise the log start offset, at most to the high watermark. Raises ``StorageError``."""
        with self._local.lock:
            self._raise_start(min(offset, self._offsets.high_watermark), remote)

    def _raise_start(self, offset: int, remote: RemoteLog | None) -> None:
        if offset > self._offsets.start:
            self._offsets.raise_start(offset)
            self._delete(remote, retention_ms=_UNLIMITED, retention_bytes=_UNLIMITED)
            self._epoch_cache.truncate_start(self._offsets.start)

    def apply_retention(self, remote: RemoteLog | None) -> int:
        """Delete the segments that the topic's retention allows; returns their number. Raises ``StorageError``.

        Local retention applies only to a log with a remote part, because other logs have no copies of their records.
        It applies to a log with the empty cleanup policy too, as in Kafka, because copies remain of what it deletes.
        """
        with self._local.lock:
            if self._local.failure is not None:
                return 0
            config = self._local.config
            retention_ms, retention_bytes = config.retention_ms, config.retention_bytes
            if remote is not None:
                retention_ms, retention_bytes = config.disk_retention_ms, config.disk_retention_bytes
            has_copies = remote is not None and config.is_copied and not config.is_compacted
            if not (config.is_deleted or has_copies):
                retention_ms = retention_bytes = _UNLIMITED
            return self._delete(remote, retention_ms=retention_ms, retention_bytes=retention_bytes)

    def _delete(self, remote: RemoteLog | None, *, retention_ms: int, retention_bytes: int) -> int:
        """Delete segments by age, by size, or before the log start offset; negative limits mean none.

        In a tiered log only segments with complete copies are deleted, and the log start offset stays.
        """
        local, offsets = self._local, self._offsets
        facts = self.facts()
        count = count_deletable(
            facts,
            now_ms=local.clock.now_ms(),
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            log_start_offset=offsets.start,
            high_watermark=offsets.high_watermark,
        )
        if count == len(self._segments.current) and not self._roll():
            count -= 1
        is_copied = remote is not None and local.config.is_copied
        if remote is not None and is_copied:
            count = count_copied(facts, count, copied_end_offset=remote.end_offset, log_start_offset=offsets.start)
        if count:
            if not is_copied:
                offsets.raise_start(max(offsets.start, self._segments.current[count].base_offset))
            self._remove(count)
            self._epoch_cache.truncate_start(offsets.start)
        return count

    def _roll(self) -> bool:
        """Start a new segment, so that the active one can be deleted; returns False if that is impossible."""
        try:
            self._local.roll(self._producers.states)
        except (CorruptBatchError, DiskFullError) as error:
            _LOG.warning("%s: the last segment is not deleted yet (%s)", self._local.name, error.message)
            return False
        return True

    def facts(self) -> list[SegmentFacts]:
        """Return the facts for retention of each segment on the disk."""
        segments = self._segments.current
        ends = [segment.base_offset for segment in segments[1:]] + [self._offsets.end]
        facts = []
        for segment, end_offset in zip(segments, ends, strict=True):
            largest_ms = self._largest_ms(segment)
            facts.append(SegmentFacts(segment.base_offset, end_offset, segment.size_bytes, largest_ms))
        return facts

    def _largest_ms(self, segment: Segment) -> int:
        """Return the largest timestamp of a segment; that of its file if it has none, or if it is damaged."""
        local = self._local
        try:
            largest_ms = local.largest_timestamp(segment).timestamp_ms
        except CorruptBatchError as error:
            _LOG.warning("%s: retention uses the time of a damaged file: %s", local.name, error.message)
            return segment.modified_ms() or local.clock.now_ms()
        return largest_ms if largest_ms >= 0 else segment.modified_ms()

    def _remove(self, count: int) -> None:
        """Remove the oldest ``count`` segments: first hide them from readers, then rename their files, durably."""
        local = self._local
        gone = self._segments.drop_first(count)
        for segment in gone:
            segment.leave()
        for segment in gone:
            _LOG.info("%s: deleting segment %d (%s)", local.name, segment.base_offset, segment.path)
            local.deleted_files.rename_segment(local.directory, segment.base_offset, local.config.file_delete_delay_ms)
        local.files.sync_directory(local.directory)
