"""The syncs of a partition's log to the disk (Kafka's ``UnifiedLog.flush``).

Invariants:

- All records before the recovery point are synced. One thread syncs at a time.
- After a failed sync the log is offline, because the kernel drops the pages that it could not write. A second sync
  would succeed without them.
- A sync does not hold the partition's lock, so appends continue during it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from millrace.errors import StorageError
from millrace_broker.log.local_log import LocalLog
from millrace_broker.log.producer_state_rebuild import remove_snapshots, write_snapshot_file
from millrace_broker.log.producer_states import ProducerStates
from millrace_broker.log.segment_appender import SegmentAppender

_LOG: Final = logging.getLogger(__name__)


class LogFlusher:
    """The syncs of one log."""

    def __init__(self, local: LocalLog) -> None:
        self._local: Final = local
        self._offsets: Final = local.offsets

    def flush(self, up_to: int | None = None) -> None:
        """Sync all appended records as ``PartitionLog.flush`` does. Raises ``StorageError``."""
        local = self._local
        with local.sync_lock:
            if up_to is not None and up_to <= self._offsets.recovery_point:
                return
            with local.lock:
                local.check_online()
                end_offset, appender = self._offsets.end, local.appender
                sealed, local.unsynced_sealed = local.unsynced_sealed, []
                local.unflushed_since_s = None
            try:
                self._sync(appender if end_offset > self._offsets.recovery_point else None, sealed)
            except StorageError as error:
                _LOG.error("%s is offline, because a sync failed: %s", local.name, error.message)
                local.failure = error
                raise
            with local.lock:
                self._offsets.advance_recovery_point(end_offset)

    def close(self, producers: ProducerStates) -> None:
        """Close the log cleanly as ``PartitionLog.close`` does. Raises ``StorageError``."""
        local = self._local
        with local.sync_lock, local.lock:
            local.check_online()
            local.seal()
            self.flush()
            write_snapshot_file(local.files, local.directory, self._offsets.end, producers)
            kept = {segment.base_offset for segment in local.segments.current} | {self._offsets.end}
            remove_snapshots(local.files, local.directory, kept=kept)
            local.release()

    def _sync(self, appender: SegmentAppender | None, sealed: Sequence[SegmentAppender]) -> None:
        local = self._local
        for each in sealed:
            if each.segment in local.segments.current:  # else it is deleted, or synced by its cleaning
                each.sync_sealed()
        if sealed:
            local.files.sync_directory(local.directory)  # the names of the indexes; a new log syncs its own name
        if appender is not None:
            appender.sync()

    @property
    def is_due(self) -> bool:
        """True if there are sealed segments to sync, or records that waited for ``flush.ms``."""
        local = self._local
        since_s = local.unflushed_since_s
        has_waited = since_s is not None and (local.clock.monotonic() - since_s) * 1000 >= local.config.flush_ms
        return local.failure is None and (bool(local.unsynced_sealed) or has_waited)
