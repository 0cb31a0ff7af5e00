"""The appends to a partition's log: offsets, producer states, rolling of segments.

Invariants:

- The log end offset is published after the batches, and only whole appended batches are readable.
- A refused append has no effect. A failed append (``StorageError``) has none that a reader could see. If the rest of a
  failed write cannot be truncated, the partition takes no more appends until it is loaded again.
- A new segment is ready for appends before it becomes the last one. A failed roll leaves the old segment in use.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from millrace.config.topic import MessageTimestampType, TopicConfig
from millrace.errors import (
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    InvalidRequestError,
    MillraceError,
    StorageError,
)
from millrace.records import (
    NO_PRODUCER_ID,
    BatchHeader,
    ControlType,
    EndTransactionMarker,
    build_end_marker_batch,
    read_header,
)
from millrace.segments.names import SEGMENT_SUFFIXES, segment_file_name
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log.aborted import index_entry
from millrace_broker.log.appender import SegmentAppender
from millrace_broker.log.checkpoints import LEADER_EPOCHS, write_epochs
from millrace_broker.log.deletion import DeletedFiles
from millrace_broker.log.files import Files, Part
from millrace_broker.log.leader_epochs import LeaderEpochs
from millrace_broker.log.loading import LoadedLog, LogDirectory
from millrace_broker.log.open_segments import OpenSegments
from millrace_broker.log.placing import Placed, place, stamp
from millrace_broker.log.producer_loading import write_snapshot_file
from millrace_broker.log.producers import Origin, ProducerEntry, append_batch, end_transaction
from millrace_broker.log.readable import ReadableLog
from millrace_broker.log.recent import NOTHING_RECENT
from millrace_broker.log.segment import Segment
from millrace_broker.log.validation import check_produced, check_times
from millrace_broker.runtime import Clock

_LOG: Final = logging.getLogger(__name__)


class AppendResult(NamedTuple):
    """The offsets of appended batches. ``log_append_time_ms`` is -1 where timestamps are the producer's.

    ``is_duplicate`` means that the batch was appended before; the offsets are those of that append.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False


class AppendableLog(ReadableLog):
    """A partition's log with appends by producers and coordinators."""

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
        recovery_point: int | None = None,
        log_start_offset: int = 0,
        was_clean: bool = False,
        starts_remotely: bool = False,
    ) -> None:
        super().__init__(topic, topic_id, partition, directory)
        self._config = config
        self._files = files
        self._clock: Final = clock
        self._open_segments: Final = OpenSegments() if open_segments is None else open_segments
        self._lock: Final = threading.RLock()
        self._sync_lock: Final = threading.RLock()
        loaded = self._loader().load(
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            was_clean=was_clean,
            starts_remotely=starts_remotely,
        )
        self._take_over(loaded)
        self._failure: MillraceError | None = None
        self._unflushed_since: float | None = None
        self._recent = NOTHING_RECENT
        self._unsynced_sealed: list[SegmentAppender] = []
        self._deleted: Final = DeletedFiles(files, clock)

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
        self._log_end_offset = self._high_watermark = loaded.log_end_offset
        self._recovery_point = loaded.recovery_point
        self._producers = loaded.producers
        self._first_open_offset = loaded.producers.first_open_offset()
        self._epochs, self._has_unwritten_epoch = loaded.epochs, False

    # --- state ---------------------------------------------------------------------------------------------

    @property
    def config(self) -> TopicConfig:
        """The topic's configuration."""
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        with self._lock:
            self._config = config
            self._follow_end()

    @property
    def recovery_point(self) -> int:
        """The offset before which all records are synced to the disk."""
        return self._recovery_point

    @property
    def durable_end(self) -> int:
        """The offset before which records are durable enough on this broker for an acknowledgement."""
        return self._recovery_point if self._config.syncs_before_ack else self._log_end_offset

    def _follow_end(self) -> None:
        """Raise the high watermark to the end of the log, unless there are other replicas."""
        if self._is_only_replica:
            self._high_watermark = max(self._high_watermark, self.durable_end)

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of (leader epoch, start offset), oldest first."""
        return self._epochs.entries

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of an offset, at the log end the newest one; -1 if unknown."""
        epoch = self._epochs.epoch_of(offset)
        return -1 if epoch is None else epoch

    def end_of_epoch(self, epoch: int) -> tuple[int, int] | None:
        """Return the end of a leader epoch as ``LeaderEpochs.end_offset_of`` does."""
        return self._epochs.end_offset_of(epoch, self._log_end_offset)

    @property
    def producers(self) -> Sequence[ProducerEntry]:
        """The states of idempotent producers."""
        with self._lock:
            return tuple(self._producers)

    def is_recent(self, offset: int) -> bool:
        """Return whether all records from an offset on are few, and in memory because they were appended a moment
        ago.
        """
        return self._recent.holds(offset, self._clock.monotonic())

    # --- appends -------------------------------------------------------------------------------------------

    def append_unsynced(
        self,
        records: bytes | bytearray,
        *,
        leader_epoch: int = 0,
        in_transaction: bool = False,
        origin: Origin = Origin.CLIENT,
    ) -> AppendResult:
        """Append a producer's batches with assigned offsets. ``must_sync`` then tells whether a sync is due.

        ``records`` is one or more whole batches with base offset 0, or exactly one from an idempotent producer. The
        bodies are appended unchanged; the caller has validated them against the topic's schema. ``in_transaction``
        means that a coordinator knows the transaction that the batch names. Sequence numbers are not checked for
        batches of a coordinator (``origin``).

        Raises the errors of ``check_produced``, ``InvalidTimestampError``, ``FencedLeaderEpochError``,
        ``InvalidProducerEpochError``, ``OutOfOrderSequenceError``, ``InvalidTxnStateError``, and ``StorageError`` when
        the disk fails; the log is then as it was before.
        """
        result = self._append(records, leader_epoch, origin, in_transaction=in_transaction, may_wait=True)
        assert result is not None, "it would not have to wait"
        return result

    def append_at_once(
        self,
        records: bytes | bytearray,
        *,
        leader_epoch: int = 0,
        in_transaction: bool = False,
        origin: Origin = Origin.CLIENT,
    ) -> AppendResult | None:
        """Append like ``append_unsynced`` if that needs only a write; for small batches from the event loop.

        Returns None without an effect if another thread holds the log's lock, or if a new file is needed.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._append(records, leader_epoch, origin, in_transaction=in_transaction, may_wait=False)
        finally:
            self._lock.release()

    def _append(
        self,
        records: bytes | bytearray,
        leader_epoch: int,
        origin: Origin,
        *,
        in_transaction: bool,
        may_wait: bool,
    ) -> AppendResult | None:
        batches = check_produced(records, self._config, allows_transactions=in_transaction)
        now_ms = self._clock.now_ms()
        check_times(records, batches, now_ms, self._config)
        with self._lock:
            self._check_online()
            self._check_epoch(leader_epoch)
            duplicate = self._find_duplicate(batches) if origin is Origin.CLIENT else None
            if duplicate is not None:
                return duplicate
            placed = place(batches, self._log_end_offset, leader_epoch)
            producer = self._judge_producer(placed, origin)
            append_time_ms = -1
            if self._config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME:
                append_time_ms = now_ms
                records, placed = stamp(records, placed, now_ms)
            appender = self._ready_appender(placed.headers, len(records), leader_epoch, now_ms)
            if appender is None:
                if not may_wait:
                    return None
                appender = self._new_appender(placed.headers, len(records), leader_epoch, now_ms)
            self._write(appender, placed.parts(records), placed.headers, len(records))
            if producer is not None:
                self._producers.update(producer, now_ms)
                self._first_open_offset = self._producers.first_open_offset()
            return AppendResult(
                base_offset=placed.headers[0].base_offset,
                last_offset=placed.headers[-1].last_offset,
                log_append_time_ms=append_time_ms,
                log_start_offset=self._log_start_offset,
            )

    def append_end_marker_unsynced(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        *,
        leader_epoch: int = 0,
        is_epoch_raised: bool = False,
        may_wait: bool = True,
    ) -> AppendResult | None:
        """Append the end marker of a producer's transaction, as its coordinator decided.

        ``is_epoch_raised`` means that ``producer_epoch`` is above that of the transaction (KIP-890). An open
        transaction at that epoch then is the next one, and the marker came late (``InvalidProducerEpochError``). With
        ``may_wait=False`` the append happens only if it needs only a write; otherwise returns None, like
        ``append_at_once``.

        Raises ``InvalidProducerEpochError``, ``TransactionCoordinatorFencedError``, ``FencedLeaderEpochError``, and
        ``StorageError`` when the disk fails; the log is then as it was before.
        """
        if not self._lock.acquire(blocking=may_wait):
            return None
        try:
            self._check_online()
            self._check_epoch(leader_epoch)
            now_ms, offset = self._clock.now_ms(), self._log_end_offset
            before = self._producers.get(producer_id)
            if is_epoch_raised and before.has_open_transaction(producer_epoch):
                raise InvalidProducerEpochError(
                    f"marker for producer {producer_id} with epoch {producer_epoch} comes late to {self.name}: the "
                    "next transaction is open there"
                )
            entry, completed = end_transaction(
                before,
                epoch=producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                is_aborted=marker.type is ControlType.ABORT,
                offset=offset,
                timestamp_ms=now_ms,
            )
            batch = build_end_marker_batch(
                marker,
                base_offset=offset,
                timestamp_ms=now_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                leader_epoch=leader_epoch,
            )
            header = read_header(batch)
            is_aborted = completed is not None and completed.is_aborted
            aborted = [index_entry(completed, self._producers)] if completed is not None and is_aborted else []
            appender = self._ready_appender([header], len(batch), leader_epoch, now_ms)
            if not may_wait and (aborted or appender is None):
                return None
            if appender is None:
                appender = self._new_appender([header], len(batch), leader_epoch, now_ms)
            # A transaction is undecided for consumers until its marker is readable.
            undecided = [each for each in self._ended if each.last_offset >= self._high_watermark]
            self._ended = (*undecided, *(() if completed is None else (completed,)))
            self._write(appender, [batch], [header], len(batch), aborted)
            self._producers.update(entry, now_ms)
            self._first_open_offset = self._producers.first_open_offset()
            return AppendResult(
                base_offset=offset,
                last_offset=offset,
                log_append_time_ms=-1,
                log_start_offset=self._log_start_offset,
            )
        finally:
            self._lock.release()

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

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether a producer has an open transaction of this epoch here; any thread may call it."""
        return self._producers.get(producer_id).has_open_transaction(epoch)

    def _judge_producer(self, placed: Placed, origin: Origin) -> ProducerEntry | None:
        header = placed.headers[0]
        if header.producer_id == NO_PRODUCER_ID:
            return None
        entry = self._producers.get(header.producer_id)
        # Each epoch starts at sequence 0. A batch may overtake the first batch of an unknown producer. Without the
        # lower bound any sequence number would be accepted.
        lowest = 0 if header.is_transactional and entry.epoch != header.producer_epoch else None
        return append_batch(entry, header, origin, lowest_sequence=lowest)

    def _note_epochs(self, *begun: tuple[int, int]) -> None:
        """Write new epochs, each as (epoch, start offset), before their first append."""
        epochs = LeaderEpochs(self._epochs.entries)
        is_news = [epochs.assign(epoch, start_offset) for epoch, start_offset in begun]
        if any(is_news) or self._has_unwritten_epoch:
            write_epochs(self._files, self.directory / LEADER_EPOCHS, epochs.entries)
            self._epochs, self._has_unwritten_epoch = epochs, False

    def _ready_appender(
        self, headers: Sequence[BatchHeader], size_bytes: int, leader_epoch: int, now_ms: int
    ) -> SegmentAppender | None:
        """Return an appender for these batches if that needs no new file, else None."""
        appender = self._appender
        if appender is None or leader_epoch != self._epochs.latest or self._has_unwritten_epoch:
            return None
        return None if self._must_roll(appender, headers, size_bytes, now_ms) else appender

    def _new_appender(
        self, headers: Sequence[BatchHeader], size_bytes: int, leader_epoch: int, now_ms: int
    ) -> SegmentAppender:
        """Return an appender for these batches; create files if necessary."""
        self._note_epochs((leader_epoch, self._log_end_offset))
        appender = self._appender or self._open_appender(now_ms)
        return self.roll() if self._must_roll(appender, headers, size_bytes, now_ms) else appender

    def _write(
        self,
        appender: SegmentAppender,
        parts: Sequence[Part],
        headers: Sequence[BatchHeader],
        size_bytes: int,
        aborted: Sequence[AbortedTransaction] = (),
    ) -> None:
        try:
            appender.append(parts, headers, aborted)
        except StorageError as error:
            self._undo(appender, error)
            raise
        self._log_end_offset = headers[-1].next_offset
        self._follow_end()
        now_s = self._clock.monotonic()
        self._recent = self._recent.grown(headers[0].base_offset, size_bytes, now_s)
        if self._unflushed_since is None:
            self._unflushed_since = now_s

    def _undo(self, appender: SegmentAppender, error: StorageError) -> None:
        _LOG.error("%s: append failed (%s)", self.name, error.message)
        try:
            appender.undo()
        except StorageError as worse:
            _LOG.error("%s: offline (%s)", self.name, worse.message)
            self._failure = error

    def _must_roll(
        self, appender: SegmentAppender, headers: Sequence[BatchHeader], size_bytes: int, now_ms: int
    ) -> bool:
        return appender.must_roll(
            size_bytes=size_bytes,
            last_offset=headers[-1].last_offset,
            max_timestamp_ms=max(header.max_timestamp for header in headers),
            now_ms=now_ms,
            segment_bytes=self._config.segment_bytes,
            age_ms=self._config.roll_ms - self._jitter_ms(appender.segment.base_offset),
        )

    def _jitter_ms(self, base_offset: int) -> int:
        """Return how much earlier this segment is rolled; it differs between partitions, and is the same at every
        start.
        """
        jitter_ms = min(self._config.segment_jitter_ms, self._config.roll_ms)
        return zlib.crc32(f"{self.name}@{base_offset}".encode()) % jitter_ms if jitter_ms else 0

    def _open_appender(self, now_ms: int) -> SegmentAppender:
        self._appender = self._appender_of(self._segments[-1], now_ms)
        return self._appender

    def roll(self) -> SegmentAppender:
        """Seal the last segment and start a new one at the log end offset. An empty segment is not rolled.

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
            self._unsynced_sealed.append(appender)
            self._appender = successor
            self._segments = (*self._segments, segment)
            return successor

    def _appender_of(self, segment: Segment, now_ms: int) -> SegmentAppender:
        return SegmentAppender(
            segment, index_bytes_max=self._config.segment_index_bytes, files=self._files, created_ms=now_ms
        )

    def _abandon_segment(self, base_offset: int, error: StorageError) -> None:
        """Remove the files of a segment that could not be started, because appends to the old segment would
        overlap it.
        """
        try:
            for suffix in SEGMENT_SUFFIXES:
                self._files.remove(self.directory / segment_file_name(base_offset, suffix))
            self._files.sync_directory(self.directory)
        except StorageError as worse:
            _LOG.error("%s: offline (%s)", self.name, worse.message)
            self._failure = error
