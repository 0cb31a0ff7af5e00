"""The segment files of one partition, Kafka's ``LocalLog``.

It writes batches to the active segment, and rolls. The parts of ``PartitionLog`` share it.

Invariants:

- The log end offset is published after the batches, and only whole appended batches are readable.
- A failed append (``StorageError``) has no effect that a reader could see. If the rest of a failed write cannot be
  truncated, the partition takes no more appends until it is loaded again.
- A new segment is ready for appends before it becomes the active one. A failed roll leaves the old segment in use.
- ``sync_lock`` is taken before ``lock``, if both are needed. Only the holder of ``lock`` changes anything here.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from millrace.config.topic import TopicConfig
from millrace.errors import MillraceError, StorageError
from millrace.records import BatchHeader
from millrace.segments.indexes import TimeEntry
from millrace.segments.names import SEGMENT_SUFFIXES, segment_file_name
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log.deleted_files import DeletedFiles
from millrace_broker.log.files import Part
from millrace_broker.log.log_loader import LoadedLog, LogLoader
from millrace_broker.log.log_offsets import LogOffsets
from millrace_broker.log.producer_state_rebuild import write_snapshot_file
from millrace_broker.log.producer_states import ProducerStates
from millrace_broker.log.recent_end import NOTHING_RECENT
from millrace_broker.log.segment import Segment
from millrace_broker.log.segment_appender import RELATIVE_OFFSET_MAX, SegmentAppender
from millrace_broker.log.segment_list import SegmentList

_LOG: Final = logging.getLogger(__name__)


class LocalLog:
    """The segments, the offsets and the active segment's appender of one partition."""

    def __init__(self, name: str, loader: LogLoader, loaded: LoadedLog) -> None:
        self.name: Final = name
        self.directory = loader.directory
        """The partition's directory; only ``reopen`` changes it."""
        self.config = loader.config
        self.files: Final = loader.files
        self.clock: Final = loader.clock
        self._open_segments: Final = loader.open_segments
        self.lock: Final = threading.RLock()
        """Held by each change of the log."""
        self.sync_lock: Final = threading.RLock()
        """Held by the one thread that syncs or truncates."""
        self.segments: Final = SegmentList(loaded.segments)
        self.offsets: Final = LogOffsets(
            start=loaded.log_start_offset,
            end=loaded.log_end_offset,
            recovery_point=loaded.recovery_point,
            syncs_before_ack=loader.config.syncs_before_ack,
        )
        self.appender: SegmentAppender | None = None
        """The appender of the active segment; None until the first append."""
        self.failure: MillraceError | None = None
        """The error that took the log offline, or its closing; the log takes no more appends."""
        self.unflushed_since_s: float | None = None
        """The time of the first append after the last flush (monotonic)."""
        self.unsynced_sealed: list[SegmentAppender] = []
        """The appenders of sealed segments that are not synced yet."""
        self.recent = NOTHING_RECENT
        """The end of the log that was appended a moment ago."""
        self.deleted_files: Final = DeletedFiles(self.files, self.clock)

    def loader(self) -> LogLoader:
        """Return the loader of the partition's directory, with the present configuration."""
        return LogLoader(
            directory=self.directory,
            config=self.config,
            files=self.files,
            clock=self.clock,
            open_segments=self._open_segments,
        )

    def reopen(self, directory: Path) -> None:
        """Use the files in a directory that has the same content. The active segment is sealed."""
        assert self.appender is None, directory
        self.directory = directory
        loader = self.loader()
        self.segments.reopen([loader.open_segment(each.base_offset, each.size_bytes) for each in self.segments.current])

    def set_config(self, config: TopicConfig) -> None:
        """Set the topic's configuration."""
        with self.lock:
            self.config = config
            self.offsets.require_sync(config.syncs_before_ack)

    def check_online(self) -> None:
        """Raise ``StorageError`` if the log takes no appends."""
        if self.failure is not None:
            raise StorageError(
                f"{self.name} accepts no appends because its disk failed ({self.failure.message}): repair the disk "
                "and start the broker again"
            )

    def largest_timestamp(self, segment: Segment) -> TimeEntry:
        """Return the largest timestamp of a segment; that of the active one is in memory."""
        appender = self.appender
        if appender is not None and appender.segment is segment:
            return appender.largest
        return segment.largest_timestamp()

    # --- appends -------------------------------------------------------------------------------------------

    def write(
        self,
        appender: SegmentAppender,
        parts: Sequence[Part],
        headers: Sequence[BatchHeader],
        size_bytes: int,
        aborted: Sequence[AbortedTransaction] = (),
    ) -> None:
        """Write batches to the active segment and publish them; ``aborted`` are the transactions that they abort.

        Raises ``StorageError``; the log is then as it was before.
        """
        try:
            appender.append(parts, headers, aborted)
        except StorageError as error:
            self._undo(appender, error)
            raise
        self.offsets.advance_end(headers[-1].next_offset)
        now_s = self.clock.monotonic()
        self.recent = self.recent.grown(headers[0].base_offset, size_bytes, now_s)
        if self.unflushed_since_s is None:
            self.unflushed_since_s = now_s

    def _undo(self, appender: SegmentAppender, error: StorageError) -> None:
        _LOG.error("%s: append failed (%s)", self.name, error.message)
        try:
            appender.undo()
        except StorageError as worse:
            _LOG.error("%s: offline (%s)", self.name, worse.message)
            self.failure = error

    def open_appender(self, now_ms: int) -> SegmentAppender:
        """Open the appender of the active segment. Raises ``StorageError``."""
        self.appender = self._appender_of(self.segments.current[-1], now_ms)
        return self.appender

    def _appender_of(self, segment: Segment, now_ms: int) -> SegmentAppender:
        return SegmentAppender(
            segment, index_bytes_max=self.config.segment_index_bytes, files=self.files, created_ms=now_ms
        )

    def appender_for(
        self, headers: Sequence[BatchHeader], size_bytes: int, now_ms: int, producers: ProducerStates
    ) -> SegmentAppender:
        """Return an appender with room for these batches; create files if necessary. Raises ``StorageError``."""
        appender = self.appender or self.open_appender(now_ms)
        if not self.must_roll(appender, headers, size_bytes, now_ms):
            return appender
        # Compaction of the leader's log may leave a gap that is larger than a segment can be.
        is_far = headers[-1].last_offset - self.offsets.end > RELATIVE_OFFSET_MAX
        return self.roll(producers, headers[0].base_offset if is_far else None)

    # --- rolls ---------------------------------------------------------------------------------------------

    def must_roll(
        self, appender: SegmentAppender, headers: Sequence[BatchHeader], size_bytes: int, now_ms: int
    ) -> bool:
        """Return whether these batches need a new segment."""
        return appender.must_roll(
            size_bytes=size_bytes,
            last_offset=headers[-1].last_offset,
            max_timestamp_ms=max(header.max_timestamp for header in headers),
            now_ms=now_ms,
            segment_bytes=self.config.segment_bytes,
            age_ms=self.config.roll_ms - self.jitter_ms(appender.segment.base_offset),
        )

    def jitter_ms(self, base_offset: int) -> int:
        """Return how much earlier a segment is rolled (``segment.jitter.ms``).

        It differs between partitions, and is the same at every start.
        """
        jitter_ms = min(self.config.segment_jitter_ms, self.config.roll_ms)
        return zlib.crc32(f"{self.name}@{base_offset}".encode()) % jitter_ms if jitter_ms else 0

    def roll(self, producers: ProducerStates, base_offset: int | None = None) -> SegmentAppender:
        """Seal the active segment and start a new one at the log end offset. An empty segment is not rolled.

        If a higher ``base_offset`` is given, the log end offset rises to it over a gap, also from an empty segment.
        ``producers`` are written to a snapshot. Raises ``StorageError``; the old segment is then still the active one,
        and the log end offset is unchanged.
        """
        with self.lock:
            now_ms = self.clock.now_ms()
            end_offset = self.offsets.end if base_offset is None else base_offset
            appender = self.appender or self.open_appender(now_ms)
            if appender.segment.base_offset == end_offset:
                return appender
            write_snapshot_file(self.files, self.directory, end_offset, producers)
            try:
                segment = self.loader().create_segment(end_offset)
                successor = self._appender_of(segment, now_ms)
                appender.seal()
            except StorageError as error:
                self._abandon_segment(end_offset, error)
                raise
            self.unsynced_sealed.append(appender)
            self.appender = successor
            self.segments.append(segment)
            self.offsets.advance_end(end_offset)
            return successor

    def _abandon_segment(self, base_offset: int, error: StorageError) -> None:
        """Remove the files of a segment that could not be started.

        Appends to the old segment would overlap it.
        """
        try:
            for suffix in SEGMENT_SUFFIXES:
                self.files.remove(self.directory / segment_file_name(base_offset, suffix))
            self.files.sync_directory(self.directory)
        except StorageError as worse:
            _LOG.error("%s: offline (%s)", self.name, worse.message)
            self.failure = error

    # --- closing -------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Seal the active segment before the log is closed. Raises ``StorageError``."""
        if self.appender is not None:
            self.appender.seal()
            self.unsynced_sealed.append(self.appender)
            self.appender = None

    def release(self) -> None:
        """Release all files without a write. No appends are possible afterwards."""
        with self.lock:
            self.appender = None
            self.unsynced_sealed.clear()
            self.failure = self.failure or StorageError(f"{self.name} is closed")
            for segment in self.segments.current:
                segment.release()
