"""One partition's log: batches in, batches out.

Invariants:

- ``log_start_offset <= high_watermark <= log_end_offset``; the first and the last only grow. On a single broker the
  high watermark and the last stable offset are the log end offset.
- Segments are sorted by base offset and do not overlap; at least one exists, and only the last is written to. The tuple
  that holds them is replaced, never changed, so that readers need no lock.
- The log end offset is published after the batches, and nothing is handed out that was not appended whole.
- A refused append leaves no trace; a failed one (``StorageError``) none that a reader could see. When the rest of a
  failed write cannot be cut off, or a sync failed, the partition takes no more appends until it has been loaded again.
- The recovery point is at most the log end offset, and everything before it has been synced.

Any thread may read (``readable``); appending, rolling, deleting and closing take the partition's lock. Syncing does
not hold it.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from millrace.config.topic import MessageTimestampType, TopicConfig
from millrace.errors import (
    FencedLeaderEpochError,
    InvalidRequestError,
    MillraceError,
    StorageError,
)
from millrace.records import NO_PRODUCER_ID, BatchHeader
from millrace.segments.names import DELETED, SEGMENT_SUFFIXES, SNAPSHOT, segment_file_name
from millrace_broker.environment import Clock
from millrace_broker.log.appender import SegmentAppender
from millrace_broker.log.checkpoints import LEADER_EPOCHS, write_epochs
from millrace_broker.log.cleaning.swap import CleanedSegment, CleaningAbortedError, hold_open, promote, take_place
from millrace_broker.log.files import Files, Part
from millrace_broker.log.loading import LoadedLog, LogDirectory
from millrace_broker.log.open_segments import OpenSegments
from millrace_broker.log.placing import Placed, place, stamp
from millrace_broker.log.producer_loading import snapshot_offsets, write_snapshot_file
from millrace_broker.log.producers import ProducerEntry, append_batch
from millrace_broker.log.readable import ReadableLog
from millrace_broker.log.reading import floor
from millrace_broker.log.retention import SegmentFacts, count_deletable
from millrace_broker.log.segment import Segment
from millrace_broker.log.validation import check_produced, check_times

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """Where batches went. ``log_append_time_ms`` is -1 where timestamps are the producer's.

    ``is_duplicate`` says that the batch had been appended before, and the offsets are the ones it got then.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False


class PartitionLog(ReadableLog):
    """The log of one partition, opened by ``LogManager``."""

    def __init__(
        self,
        *,
        topic: str,
        topic_id: UUID,
        partition: int,
        directory: Path,
        config: TopicConfig,
        files: Files,
        clock: Clock,
        open_segments: OpenSegments | None = None,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        was_clean: bool = False,
    ) -> None:
        super().__init__(topic, topic_id, partition, directory)
        self._config = config
        self._files: Final = files
        self._clock: Final = clock
        self._open_segments: Final = OpenSegments() if open_segments is None else open_segments
        self._lock: Final = threading.RLock()
        loaded = self._loader().load(
            recovery_point=recovery_point, log_start_offset=log_start_offset, was_clean=was_clean
        )
        self._take_over(loaded)
        self._failure: MillraceError | None = None
        self._unflushed_since: float | None = None
        self._deleted: list[tuple[float, Path]] = []

    def _loader(self) -> LogDirectory:
        return LogDirectory(
            directory=self.directory,
            config=self._config,
            files=self._files,
            clock=self._clock,
            open_segments=self._open_segments,
        )

    def _take_over(self, loaded: LoadedLog) -> None:
        self._segments = tuple(loaded.segments)
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._recovery_point = loaded.recovery_point
        self._producers = loaded.producers
        self._epochs = loaded.epochs

    # --- what it is ----------------------------------------------------------------------------------------

    @property
    def config(self) -> TopicConfig:
        """The topic's configuration."""
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config

    @property
    def recovery_point(self) -> int:
        """Offset before which everything has been synced to the disk."""
        return self._recovery_point

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """Pairs of (leader epoch, start offset), oldest first."""
        return self._epochs.entries

    @property
    def producers(self) -> Sequence[ProducerEntry]:
        """What is remembered of idempotent producers."""
        with self._lock:
            return tuple(self._producers)

    # --- appending -----------------------------------------------------------------------------------------

    def append(self, records: bytes | bytearray, *, leader_epoch: int = 0) -> AppendResult:
        """Append the batches that a producer sent, giving them their offsets.

        ``records`` is one or more whole batches with base offset 0, or exactly one from an idempotent producer. The
        bodies are taken as they are: the caller has validated them against the topic's schema.

        Raises what ``check_produced`` does, ``InvalidTimestampError``, ``FencedLeaderEpochError``,
        ``InvalidProducerEpochError``, ``OutOfOrderSequenceError``, and ``StorageError`` when the disk fails; the log is
        then as it was before.
        """
        batches = check_produced(records, self._config)
        now_ms = self._clock.now_ms()
        check_times(records, batches, now_ms, self._config)
        with self._lock:
            self._check_online()
            self._check_epoch(leader_epoch)
            duplicate = self._find_duplicate(batches)
            if duplicate is not None:
                return duplicate
            placed = place(batches, self._log_end_offset, leader_epoch)
            producer = self._judge_producer(placed)
            append_time_ms = -1
            if self._config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME:
                append_time_ms = now_ms
                records, placed = stamp(records, placed, now_ms)
            self._note_epoch(leader_epoch)
            self._write(placed.parts(records), placed.headers, len(records), now_ms)
            if producer is not None:
                self._producers.update(producer, now_ms)
            result = AppendResult(
                base_offset=placed.headers[0].base_offset,
                last_offset=placed.headers[-1].last_offset,
                log_append_time_ms=append_time_ms,
                log_start_offset=self._log_start_offset,
            )
        if self._log_end_offset - self._recovery_point >= self._config.flush_messages:
            self.flush()
        return result

    def _check_online(self) -> None:
        if self._failure is not None:
            raise StorageError(
                f"{self.name} takes no appends since its disk failed ({self._failure.message}): "
                "repair the disk and start the broker again"
            )

    def _check_epoch(self, leader_epoch: int) -> None:
        latest = self._epochs.latest
        if leader_epoch < 0:
            raise InvalidRequestError(f"leader epoch {leader_epoch} of {self.name} is negative")
        if latest is not None and leader_epoch < latest:
            raise FencedLeaderEpochError(
                f"append to {self.name} under leader epoch {leader_epoch}, its log has batches of epoch {latest}"
            )

    def _find_duplicate(self, batches: list[tuple[int, BatchHeader]]) -> AppendResult | None:
        header = batches[0][1]
        if header.producer_id == NO_PRODUCER_ID:
            return None
        duplicate = self._producers.get(header.producer_id).find_duplicate(header)
        if duplicate is None:
            return None
        is_append_time = self._config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME
        return AppendResult(
            base_offset=duplicate.first_offset,
            last_offset=duplicate.last_offset,
            log_append_time_ms=duplicate.timestamp_ms if is_append_time else -1,
            log_start_offset=self._log_start_offset,
            is_duplicate=True,
        )

    def _judge_producer(self, placed: Placed) -> ProducerEntry | None:
        header = placed.headers[0]
        if header.producer_id == NO_PRODUCER_ID:
            return None
        return append_batch(self._producers.get(header.producer_id), header)

    def _note_epoch(self, leader_epoch: int) -> None:
        """Write a new epoch down before anything of it is appended."""
        if leader_epoch != self._epochs.latest:
            self._epochs.assign(leader_epoch, self._log_end_offset)
            write_epochs(self._files, self.directory / LEADER_EPOCHS, self._epochs.entries)

    def _write(self, parts: Sequence[Part], headers: Sequence[BatchHeader], size_bytes: int, now_ms: int) -> None:
        appender = self._appender_for(headers, size_bytes, now_ms)
        try:
            appender.append(parts, headers)
        except StorageError as error:
            self._undo(appender, error)
            raise
        self._log_end_offset = headers[-1].next_offset
        if self._unflushed_since is None:
            self._unflushed_since = self._clock.monotonic()

    def _undo(self, appender: SegmentAppender, error: StorageError) -> None:
        _LOG.error("%s: append failed (%s)", self.name, error.message)
        try:
            appender.undo()
        except StorageError as worse:
            _LOG.error("%s: offline (%s)", self.name, worse.message)
            self._failure = error

    def _appender_for(self, headers: Sequence[BatchHeader], size_bytes: int, now_ms: int) -> SegmentAppender:
        appender = self._appender or self._open_appender(now_ms)
        must_roll = appender.must_roll(
            size_bytes=size_bytes,
            last_offset=headers[-1].last_offset,
            max_timestamp_ms=max(header.max_timestamp for header in headers),
            now_ms=now_ms,
            segment_bytes=self._config.segment_bytes,
            age_ms=self._config.roll_ms - self._jitter_ms(appender.segment.base_offset),
        )
        return self.roll() if must_roll else appender

    def _jitter_ms(self, base_offset: int) -> int:
        """Return by how much this segment is rolled earlier: spread over partitions, the same at every start."""
        jitter_ms = min(self._config.segment_jitter_ms, self._config.roll_ms)
        return zlib.crc32(f"{self.name}@{base_offset}".encode()) % jitter_ms if jitter_ms else 0

    def _open_appender(self, now_ms: int) -> SegmentAppender:
        self._appender = self._appender_of(self._segments[-1], now_ms)
        return self._appender

    def roll(self) -> SegmentAppender:
        """Seal the last segment and begin a new one at the log end offset. An empty segment is not rolled.

        Raises ``StorageError``; the old segment is then still the last one.
        """
        with self._lock:
            now_ms = self._clock.now_ms()
            appender = self._appender or self._open_appender(now_ms)
            if appender.segment.base_offset == self._log_end_offset:
                return appender
            write_snapshot_file(self._files, self.directory, self._log_end_offset, self._producers)
            try:
                segment = self._loader().create_segment(self._log_end_offset)
                successor = self._appender_of(segment, now_ms)
                appender.seal()
            except StorageError as error:
                self._abandon_segment(self._log_end_offset, error)
                raise
            self._appender = successor
            self._segments = (*self._segments, segment)
            return successor

    def _appender_of(self, segment: Segment, now_ms: int) -> SegmentAppender:
        return SegmentAppender(
            segment, index_bytes_max=self._config.segment_index_bytes, files=self._files, created_ms=now_ms
        )

    def _abandon_segment(self, base_offset: int, error: StorageError) -> None:
        """Remove the files of a segment that could not be begun: appends that go on in the old one would overlap it."""
        try:
            for suffix in SEGMENT_SUFFIXES:
                self._files.remove(self.directory / segment_file_name(base_offset, suffix))
            self._files.sync_directory(self.directory)
        except StorageError as worse:
            _LOG.error("%s: offline (%s)", self.name, worse.message)
            self._failure = error

    # --- durability ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sync everything appended so far, and move the recovery point up to there.

        Raises ``StorageError``; a failed sync leaves it open what is on the disk, so the partition then takes no more
        appends until it has been loaded again.
        """
        with self._lock:
            self._check_online()
            end_offset = self._log_end_offset
            if end_offset <= self._recovery_point:
                return
            segments = self._segments[floor(self._segments, self._recovery_point) :]
            self._unflushed_since = None
        try:
            for segment in segments:
                self._sync_unless_deleted(segment)
            self._files.sync_directory(self.directory)
        except StorageError as error:
            self._failure = error
            raise
        with self._lock:
            self._recovery_point = max(self._recovery_point, end_offset)

    def _sync_unless_deleted(self, segment: Segment) -> None:
        try:
            self._sync(segment)
        except StorageError:
            if segment in self._segments:
                raise

    def _sync(self, segment: Segment) -> None:
        for path in (segment.path, segment.offset_index_path, segment.time_index_path):
            if self._files.size_bytes(path) is not None:
                file = self._files.open(path)
                file.sync()
                file.close()

    def tick(self, *, producer_expiration_ms: int) -> None:
        """Do what time has made due: flush, forget producers, remove files of deleted segments."""
        now = self._clock.monotonic()
        since = self._unflushed_since
        segments = self._segments
        is_sealed = len(segments) > 1 and self._recovery_point < segments[-1].base_offset
        is_due = since is not None and (now - since) * 1000 >= self._config.flush_ms
        if self._failure is None and (is_sealed or is_due):
            self.flush()
        with self._lock:
            self._producers.expire(self._clock.now_ms(), producer_expiration_ms)
            due = [path for when, path in self._deleted if when <= now]
            self._deleted = [(when, path) for when, path in self._deleted if when > now]
        for path in due:
            self._files.remove(path)

    def close(self) -> None:
        """Seal everything for a clean shutdown: the log is synced, indexes trimmed, producers snapshotted.

        Raises ``StorageError``; the partition must then be recovered at the next start.
        """
        with self._lock:
            self._check_online()
            if self._appender is not None:
                self._appender.seal()
                self._appender = None
            self.flush()
            write_snapshot_file(self._files, self.directory, self._log_end_offset, self._producers)
            self._remove_stray_snapshots()
            self.release()

    def release(self) -> None:
        """Let go of all files without writing anything. Nothing may be appended afterwards."""
        with self._lock:
            self._appender = None
            self._failure = self._failure or StorageError(f"{self.name} is closed")
            for segment in self._segments:
                segment.release()

    def _remove_stray_snapshots(self) -> None:
        """Keep the snapshots at the start of a segment and the newest one."""
        kept = {segment.base_offset for segment in self._segments} | {self._log_end_offset}
        for offset in snapshot_offsets(self._files, self.directory):
            if offset not in kept:
                self._files.remove(self.directory / segment_file_name(offset, SNAPSHOT))

    # --- retention -----------------------------------------------------------------------------------------

    def apply_retention(self) -> int:
        """Delete the segments that the topic's retention lets go; returns how many went.

        Their files are renamed at once and removed after ``file.delete.delay.ms``, so that readers in the middle of one
        are not disturbed.
        """
        with self._lock:
            if self._failure is not None:
                return 0
            count = count_deletable(
                self._facts(),
                now_ms=self._clock.now_ms(),
                retention_ms=self._config.retention_ms if self._config.is_deleted else -1,
                retention_bytes=self._config.retention_bytes if self._config.is_deleted else -1,
                log_start_offset=self._log_start_offset,
                high_watermark=self.high_watermark,
            )
            if count == len(self._segments):
                self.roll()
            if count:
                self._log_start_offset = max(self._log_start_offset, self._segments[count].base_offset)
                self._remove_segments(count, "retention")
                if self._epochs.truncate_start(self._log_start_offset):
                    write_epochs(self._files, self.directory / LEADER_EPOCHS, self._epochs.entries)
            return count

    def _facts(self) -> list[SegmentFacts]:
        ends = [segment.base_offset for segment in self._segments[1:]] + [self._log_end_offset]
        facts = []
        for segment, end_offset in zip(self._segments, ends, strict=True):
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

    def _remove_segments(self, count: int, why: str) -> None:
        """Take the oldest ``count`` segments out of the log: first from readers' sight, then their names."""
        gone, self._segments = self._segments[:count], self._segments[count:]
        for segment in gone:
            segment.leave()
        due = self._clock.monotonic() + self._config.file_delete_delay_ms / 1000
        for segment in gone:
            _LOG.info("%s: deleting segment %d (%s)", self.name, segment.base_offset, why)
            for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT):
                path = self.directory / segment_file_name(segment.base_offset, suffix)
                if self._files.size_bytes(path) is not None:
                    self._files.rename(path, path.with_name(path.name + DELETED))
                    self._deleted.append((due, path.with_name(path.name + DELETED)))

    # --- compaction ----------------------------------------------------------------------------------------

    def replace_segments(self, replaced: Sequence[Segment], cleaned: CleanedSegment) -> None:
        """Put a cleaned segment, whose files are ready, in the place of consecutive sealed ones.

        Whoever reads the old ones goes on with their files. Raises ``CleaningAbortedError`` when they are not part of
        the log any more, and ``StorageError``; the partition then takes no appends until it has been loaded again.
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
            due = self._clock.monotonic() + self._config.file_delete_delay_ms / 1000
            self._deleted += [(due, path) for path in deleted]
