"""The truncation of a partition's log (Kafka's ``UnifiedLog.truncateTo`` and ``truncateFullyAndStartAt``).

Invariants:

- Truncation removes segments from the end on, each durably before the previous one, and then truncates the last one
  durably. A crash leaves the log longer than intended, but never with a hole. No truncated record comes back after a
  record that replaced it. Epochs are forgotten only after their records.
- The recovery point on the disk is never beyond a log's end. It is lowered and written before a truncation.
- On a full disk a truncation has no effect or completes. Only the copy of a segment's beginning needs space, so it is
  made first.
"""

from __future__ import annotations

import logging
from typing import Final

from millrace.errors import DiskFullError, StorageError
from millrace.segments.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from millrace_broker.log.index_builder import IndexBuilder
from millrace_broker.log.leader_epoch_cache import LeaderEpochFileCache
from millrace_broker.log.local_log import LocalLog
from millrace_broker.log.producer_state_manager import ProducerStateManager
from millrace_broker.log.producer_state_rebuild import (
    ended_since,
    rebuild_producer_states,
    remove_snapshots,
    snapshot_offsets,
)
from millrace_broker.log.recent_end import NOTHING_RECENT
from millrace_broker.log.segment import Segment
from millrace_broker.log.segment_list import floor

_LOG: Final = logging.getLogger(__name__)


class LogTruncation:
    """The truncation of one log."""

    def __init__(self, local: LocalLog, epoch_cache: LeaderEpochFileCache, producers: ProducerStateManager) -> None:
        self._local: Final = local
        self._offsets: Final = local.offsets
        self._segments: Final = local.segments
        self._epoch_cache: Final = epoch_cache
        self._producers: Final = producers

    def lower_recovery_point(self, offset: int) -> bool:
        """Lower the recovery point before a truncation; returns whether the checkpoint must be written."""
        with self._local.sync_lock, self._local.lock:
            is_inside = self._segments.current[0].base_offset <= offset < self._offsets.end
            return self._offsets.lower_recovery_point(self._cut_of(offset)[2] if is_inside else offset)

    def _cut_of(self, offset: int) -> tuple[Segment, int, int]:
        """Return where to cut the log before an offset: the segment, the position, and the resulting log end offset.

        Compaction may have left a gap before the offset. The resulting end is the start of that gap then.
        """
        segments = self._segments.current
        segment = segments[floor(segments, offset)]
        found = segment.find(offset)
        position = segment.size_bytes if found is None else found[0]
        return segment, position, segment.end_before(position)

    def truncate_to(self, offset: int) -> None:
        """Truncate the log as ``PartitionLog.truncate_to`` does. Raises ``StorageError``."""
        local = self._local
        with local.sync_lock, local.lock:
            local.check_online()
            has_begun = False
            try:
                self._copy_beginning(offset)
                has_begun = True
                if offset < self._segments.current[0].base_offset:
                    self._begin_at(offset)
                    return
                if offset < self._offsets.end:
                    self._cut_at(offset)
                self._epoch_cache.truncate_end(min(offset, self._offsets.end))
            except StorageError as error:
                if has_begun or not isinstance(error, DiskFullError):
                    local.failure = error
                raise

    def begin_at(self, offset: int) -> None:
        """Delete all records as ``PartitionLog.begin_at`` does. Raises ``StorageError``."""
        local = self._local
        with local.sync_lock, local.lock:
            local.check_online()
            try:
                self._begin_at(offset)
            except StorageError as error:
                local.failure = error
                raise

    def reload_completed(self) -> None:
        """Load the transactions with markers after the high watermark, which went back. The caller holds the lock."""
        local, producers = self._local, self._producers
        if len(producers.states):
            producers.completed = ended_since(
                local.files,
                local.directory,
                self._segments.current,
                self._offsets.high_watermark,
                local.clock.now_ms(),
            )

    def _copy_beginning(self, offset: int) -> None:
        """Copy what a truncation leaves of a segment, if a reader may have mapped the rest."""
        if self._segments.current[0].base_offset <= offset < self._offsets.end:
            segment, position, end_offset = self._cut_of(offset)
            if position < segment.size_bytes and end_offset < self._offsets.high_watermark:
                self._local.loader().copy_beginning(segment, position)

    def _cut_at(self, offset: int) -> None:
        segment, position, end_offset = self._cut_of(offset)
        was_readable = self._offsets.high_watermark
        _LOG.info("%s: truncated from offset %d to %d", self._local.name, self._offsets.end, end_offset)
        self._end_at(end_offset)
        kept = self._segments.current.index(segment) + 1
        gone = self._segments.drop_after(kept)
        self._remove_files(gone)
        if position < segment.size_bytes:
            # Readers do not know records after the high watermark, so no reader has them mapped.
            segment = self._cut_segment(segment, position, end_offset, in_place=end_offset >= was_readable)
        try:
            self._local.open_appender(self._local.clock.now_ms())
        except DiskFullError as error:
            _LOG.warning("%s: the next append opens the last segment (%s)", self._local.name, error.message)
        self._load_producers_again(segment, end_offset)

    def _end_at(self, end_offset: int) -> None:
        """Lower the offsets in memory to ``end_offset``, before the records are removed from the disk."""
        self._offsets.truncate(end_offset)
        self._local.recent = NOTHING_RECENT
        self._local.appender = None

    def _remove_files(self, gone: tuple[Segment, ...]) -> None:
        """Remove the files of segments, the last one first and each durably."""
        local = self._local
        for segment in reversed(gone):
            segment.leave()
            local.deleted_files.rename_segment(local.directory, segment.base_offset, local.config.file_delete_delay_ms)
            local.files.sync_directory(local.directory)
        local.unsynced_sealed = [each for each in local.unsynced_sealed if each.segment not in gone]

    def _cut_segment(self, segment: Segment, position: int, end_offset: int, *, in_place: bool) -> Segment:
        """Truncate a segment to ``position``, durably, with its indexes. Returns the segment that replaces it."""
        local = self._local
        offsets, times = segment.indexes()
        builder = IndexBuilder(segment.base_offset, segment.index_interval_bytes)
        offset_count = sum(1 for entry in offsets if entry.position < position)
        time_count = sum(1 for entry in times if entry.offset < end_offset)
        builder.offset_bytes[:] = bytes(offsets.buffer[: offset_count * OFFSET_ENTRY_BYTES])
        builder.time_bytes[:] = bytes(times.buffer[: time_count * TIME_ENTRY_BYTES])
        segment.leave()
        local.unsynced_sealed = [each for each in local.unsynced_sealed if each.segment is not segment]
        loader = local.loader()
        if in_place:
            loader.cut(segment, position, in_place=True)
        else:
            loader.swap_in(segment)
        loader.sync(segment)
        builder.write(local.files, segment.offset_index_path, segment.time_index_path)
        shorter = loader.open_segment(segment.base_offset, position)
        self._segments.replace((segment,), shorter)
        return shorter

    def _load_producers_again(self, last: Segment, end_offset: int) -> None:
        """Load the producer states at the new end again; this also rebuilds the last segment's transaction index."""
        local, producers = self._local, self._producers
        producers.forget_after(end_offset)
        if not len(producers.states) and not last.transaction_index():
            return
        producers.reload(
            rebuild_producer_states(
                local.files,
                local.directory,
                snapshot_offsets(local.files.names(local.directory)),
                self._segments.current,
                end_offset,
                local.clock.now_ms(),
                recovered_from=last.base_offset,
            )
        )

    def _begin_at(self, offset: int) -> None:
        local, offsets = self._local, self._offsets
        _LOG.info(
            "%s: all records are removed, and the log starts again at offset %d; it had offsets %d..%d",
            local.name,
            offset,
            offsets.start,
            offsets.end - 1,
        )
        self._end_at(offsets.start)
        self._remove_files(self._segments.current)  # the list needs a segment until the new one exists
        remove_snapshots(local.files, local.directory)
        self._epoch_cache.clear()
        first = local.loader().create_segment(offset)
        offsets.restart(offset)
        self._segments.restart(first)
        self._producers.clear()
