"""The log of one partition, Kafka's ``UnifiedLog``.

``PartitionLog`` owns the parts of a log, and is the one way to them:

- ``LocalLog``: the segment files, with ``SegmentList`` and ``LogOffsets``;
- ``LeaderEpochFileCache`` and ``ProducerStateManager``;
- ``LogReader``: reads and look-ups;
- ``LeaderAppender`` and ``FollowerAppender``;
- ``LogFlusher``: syncs; ``LogTruncation``; ``SegmentDeletion``: retention and deleted records.

Each part states its invariants. Any thread may read. Changes take the partition's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from millrace.config.topic import TopicConfig
from millrace.records import EndTransactionMarker, end_of_batches
from millrace.segments.names import partition_directory_name
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log.extents import Extent
from millrace_broker.log.files import Files
from millrace_broker.log.follower_appender import FollowerAppender
from millrace_broker.log.future_log import FutureLog
from millrace_broker.log.leader_appender import AppendResult, LeaderAppender
from millrace_broker.log.leader_epoch_cache import LeaderEpochFileCache
from millrace_broker.log.leader_epochs import LeaderEpochs
from millrace_broker.log.local_log import LocalLog
from millrace_broker.log.log_flusher import LogFlusher
from millrace_broker.log.log_loader import LogLoader
from millrace_broker.log.log_reader import LogReader
from millrace_broker.log.log_truncation import LogTruncation
from millrace_broker.log.open_segments import OpenSegments
from millrace_broker.log.producer_state_manager import ProducerStateManager
from millrace_broker.log.producer_states import Origin, ProducerEntry
from millrace_broker.log.retention import SegmentFacts
from millrace_broker.log.segment import Segment
from millrace_broker.log.segment_deletion import SegmentDeletion
from millrace_broker.log.segment_list import floor
from millrace_broker.log.segment_replacement import CleanedSegment, replace_segments
from millrace_broker.log.tiered.remote_log import RemoteLog
from millrace_broker.log.validation import ProducedBatches, ReplicatedBatches
from millrace_broker.runtime import Clock


class PartitionLog:
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
        recovery_point: int | None = None,
        log_start_offset: int = 0,
        was_clean: bool = False,
        starts_remotely: bool = False,
    ) -> None:
        """Load the log, as ``LogLoader.load`` does, with the same errors."""
        self.topic: Final = topic
        self.topic_id: Final = topic_id
        self.partition: Final = partition
        self.name: Final = partition_directory_name(topic, partition)
        """``topic-partition``, as in the directory's name and in messages."""
        self.is_led_here = True
        """True if this broker leads the partition; only the leader changes the copies in the remote store."""
        loader = LogLoader(
            directory=directory,
            config=config,
            files=files,
            clock=clock,
            open_segments=OpenSegments() if open_segments is None else open_segments,
        )
        loaded = loader.load(
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            was_clean=was_clean,
            starts_remotely=starts_remotely,
        )
        local = LocalLog(self.name, loader, loaded)
        epoch_cache = LeaderEpochFileCache(loaded.epochs, files, directory)
        producers = ProducerStateManager(loaded.producers)
        self._local: Final = local
        self._offsets: Final = local.offsets
        self._epoch_cache: Final = epoch_cache
        self._producers: Final = producers
        self._reader: Final = LogReader(local)
        self._leader_appender: Final = LeaderAppender(local, epoch_cache, producers)
        self._follower_appender: Final = FollowerAppender(local, epoch_cache, producers)
        self._flusher: Final = LogFlusher(local)
        self._truncation: Final = LogTruncation(local, epoch_cache, producers)
        self._deletion: Final = SegmentDeletion(local, epoch_cache, producers)

    # --- state ---------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """The directory with the log's files; it changes when the partition moves to another log directory."""
        return self._local.directory

    @property
    def config(self) -> TopicConfig:
        """The topic's configuration."""
        return self._local.config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._local.set_config(config)

    @property
    def log_start_offset(self) -> int:
        """The offset of the first remaining record."""
        return self._offsets.start

    @property
    def high_watermark(self) -> int:
        """The offset before which all in-sync replicas have all records; consumers read up to it.

        If records are synced before their acknowledgement, only synced records count.
        """
        return self._offsets.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset before which every transaction is decided, by a marker that is readable.

        It is not below the log start, also if the first records of an open transaction were deleted.
        """
        return max(self._producers.last_stable_offset(self._offsets.high_watermark), self._offsets.start)

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._offsets.end

    @property
    def recovery_point(self) -> int:
        """The offset before which all records are synced to the disk."""
        return self._offsets.recovery_point

    @property
    def durable_end(self) -> int:
        """The offset before which records are durable enough on this broker for an acknowledgement."""
        return self._offsets.durable_end

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The present segments; appends go to the last one."""
        return self._local.segments.current

    def segment_of(self, offset: int) -> Segment:
        """Return the local segment that has an offset, or would have it."""
        segments = self._local.segments.current
        return segments[floor(segments, offset)]

    @property
    def size_bytes(self) -> int:
        """The size of all segments, without indexes."""
        return sum(segment.size_bytes for segment in self._local.segments.current)

    @property
    def first_base_offset(self) -> int:
        """The base offset of the first segment; the log may start inside that segment."""
        return self._local.segments.current[0].base_offset

    def facts(self) -> list[SegmentFacts]:
        """Return the facts for retention of each segment on the disk."""
        return self._deletion.facts()

    # --- leader epochs and producers -----------------------------------------------------------------------

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs with their start offsets, oldest first; the caller must not change them."""
        return self._epoch_cache.epochs

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of an offset, at the log end the newest one; -1 if unknown."""
        epoch = self._epoch_cache.epochs.epoch_of(offset)
        return -1 if epoch is None else epoch

    def end_of_epoch(self, epoch: int) -> tuple[int, int] | None:
        """Return the end of a leader epoch as ``LeaderEpochs.end_offset_of`` does."""
        return self._epoch_cache.epochs.end_offset_of(epoch, self._offsets.end)

    def begin_epoch(self, leader_epoch: int) -> None:
        """Begin a leader epoch at the log end; the first append in the epoch writes it to its file."""
        with self._local.lock:
            self._epoch_cache.begin(leader_epoch, self._offsets.end)

    @property
    def producers(self) -> Sequence[ProducerEntry]:
        """The states of idempotent producers."""
        with self._local.lock:
            return tuple(self._producers.states)

    def find_producer(self, producer_id: int) -> ProducerEntry | None:
        """Return a producer's entry; None if it is unknown. Each batch and each end marker replaces the entry."""
        return self._producers.states.find(producer_id)

    def expect(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Note a batch of an unknown producer before its append; see ``ProducerStates.expect``."""
        self._producers.states.expect(producer_id, epoch, sequence, self._local.clock.now_ms())

    # --- reads ---------------------------------------------------------------------------------------------

    def read(
        self, start_offset: int, max_bytes: int, *, end_offset: int | None = None, min_one_batch: bool = True
    ) -> bytes:
        """Read whole batches, from the one with ``start_offset`` up to ``max_bytes`` or ``end_offset``.

        The first batch may begin before ``start_offset``, and the last may end after ``end_offset`` (exclusive, by
        default the high watermark). With ``min_one_batch`` the first batch is returned even if it is larger than
        ``max_bytes``. Returns no bytes if there are no records. A read ends with its segment; more records may follow.

        Raises ``OffsetOutOfRangeError``, and ``CorruptBatchError`` or ``StorageError`` when the disk lost data.
        """
        high_watermark = self._offsets.high_watermark
        end = high_watermark if end_offset is None else min(end_offset, high_watermark)
        return self._reader.read(start_offset, max_bytes, end, min_one_batch)

    def read_to_end(self, start_offset: int, max_bytes: int, *, min_one_batch: bool = True) -> bytes:
        """Read like ``read``, also unacknowledged records after the high watermark; for replicas."""
        return self._reader.read(start_offset, max_bytes, self._offsets.end, min_one_batch)

    def is_recent(self, offset: int) -> bool:
        """Return whether the records from an offset on are few, and in the page cache because of a recent append."""
        return self._local.recent.holds(offset, self._local.clock.monotonic())

    @property
    def remote(self) -> RemoteLog | None:
        """The part of the log in the remote store, if the topic is tiered."""
        return self._reader.remote

    @remote.setter
    def remote(self, remote: RemoteLog | None) -> None:
        self._reader.remote = remote

    def is_remote(self, offset: int) -> bool:
        """Return whether records at an offset must be fetched from the remote store, which is slow."""
        return self._reader.remote is not None and offset < self._local.segments.current[0].base_offset

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Find the first record with a timestamp of at least ``timestamp_ms``: (offset, timestamp), or None."""
        return self._reader.offset_for_time(timestamp_ms)

    def max_timestamp_offset(self) -> tuple[int, int] | None:
        """Find the first record with the log's largest timestamp: (offset, timestamp); None in an empty log."""
        return self._reader.max_timestamp_offset()

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records or their marker in ``start_offset..end_offset`` (exclusive).

        Raises ``OffsetOutOfRangeError`` if retention or a caller of ``delete_records`` has deleted ``start_offset``,
        ``CorruptBatchError`` for an index that does not agree with the log, ``StorageError``.
        """
        return self._reader.aborted_transactions(start_offset, end_offset)

    def aborted_within(self, start_offset: int, records: bytes) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap batches read from ``start_offset`` on, with the same errors."""
        next_offset = end_of_batches(records, start_offset)
        return self.aborted_transactions(start_offset, next_offset) if next_offset > start_offset else []

    def locate(self, start_offset: int, end_offset: int, split_bytes: int = 0) -> list[Extent]:
        """Return the files and positions of a range of offsets, cut to about ``split_bytes`` (0: per segment).

        The extents tile ``start_offset..end_offset`` (exclusive) exactly; there are none for an empty range. Raises
        ``OffsetOutOfRangeError`` when the range is not between log start and high watermark.
        """
        return self._reader.locate(start_offset, end_offset, split_bytes)

    # --- appends of a leader -------------------------------------------------------------------------------

    def append(self, data: bytes, *, leader_epoch: int = 0, in_transaction: bool = False) -> AppendResult:
        """Check a producer's batches, append them, and sync them if the topic requires that before the acknowledgement.

        Raises the errors of ``ProducedBatches``, ``append_unsynced`` and ``flush``.
        """
        batches = ProducedBatches(data, self.config, in_transaction=in_transaction)
        result = self.append_unsynced(batches, leader_epoch=leader_epoch)
        assert result is not None, "an append that may wait always returns a result"
        if self.must_sync(result):
            self.flush(result.last_offset + 1)
        return result

    def append_unsynced(
        self,
        batches: ProducedBatches,
        *,
        leader_epoch: int = 0,
        origin: Origin = Origin.CLIENT,
        may_wait: bool = True,
    ) -> AppendResult | None:
        """Append a producer's batches with assigned offsets. ``must_sync`` then returns whether a sync is due.

        The bodies are appended unchanged; the caller has validated them against the topic's schema. Sequence numbers
        are not checked for batches of a coordinator (``origin``). With ``may_wait=False``, for small batches from the
        event loop, the append happens only if it needs only a write. Otherwise, if another thread holds the log's lock
        or a new file is needed, the method returns None without an effect.

        Raises ``RecordListTooLargeError``, ``FencedLeaderEpochError``, ``InvalidProducerEpochError``,
        ``OutOfOrderSequenceError``, ``InvalidTxnStateError``, and ``StorageError`` when the disk fails; the log is then
        as it was before.
        """
        if not self._local.lock.acquire(blocking=may_wait):
            return None
        try:
            return self._leader_appender.append(batches, leader_epoch, origin, may_wait=may_wait)
        finally:
            self._local.lock.release()

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
        ``append_unsynced``.

        Raises ``InvalidProducerEpochError``, ``TransactionCoordinatorFencedError``, ``FencedLeaderEpochError``, and
        ``StorageError`` when the disk fails; the log is then as it was before.
        """
        if not self._local.lock.acquire(blocking=may_wait):
            return None
        try:
            return self._leader_appender.append_end_marker(
                producer_id,
                producer_epoch,
                marker,
                leader_epoch=leader_epoch,
                is_epoch_raised=is_epoch_raised,
                may_wait=may_wait,
            )
        finally:
            self._local.lock.release()

    def roll(self) -> None:
        """Seal the active segment and start a new one, unless it is empty. Raises ``StorageError``."""
        self._local.roll(self._producers.states)

    # --- appends of a follower, and truncation -------------------------------------------------------------

    def takes_at_once(self, size_bytes: int) -> bool:
        """Return whether ``size_bytes`` of a leader's batches can be appended without a sync and a new file."""
        appender, config = self._local.appender, self._local.config
        has_room = appender is not None and appender.segment.size_bytes + size_bytes <= config.segment_bytes
        return not size_bytes or (has_room and not config.syncs_before_ack)

    def append_replicated(self, batches: ReplicatedBatches) -> int:
        """Append a leader's batches unchanged; returns the new log end offset.

        Raises ``CorruptBatchError`` for offsets that the log has already, and ``StorageError`` when the disk fails; the
        log then keeps the batches before the failed one.
        """
        return self._follower_appender.append(batches)

    def hold_watermark(self, offset: int) -> None:
        """Set the high watermark to ``offset``, or as near as the log allows.

        Only ``raise_watermark`` moves it from now on. It may go back, for example in a log that was just loaded.
        Transactions with markers after it are undecided again.
        """
        with self._local.lock:
            if self._offsets.hold_high_watermark(offset):
                self._truncation.reload_completed()

    def raise_watermark(self, offset: int) -> None:
        """Raise the high watermark to ``offset``; it does not go back.

        All replicas in sync have the records before it. The caller takes no lock, and so does not wait for an append.
        """
        self._offsets.raise_high_watermark(offset)

    def release_watermark(self) -> None:
        """Let the high watermark follow the log end, because there is no other replica."""
        with self._local.lock:
            self._offsets.release_high_watermark()

    def lower_recovery_point(self, offset: int) -> bool:
        """Lower the recovery point before a truncation; returns whether the checkpoint must be written."""
        return self._truncation.lower_recovery_point(offset)

    def truncate_to(self, offset: int) -> None:
        """Truncate the log to an offset, or to the end of the last batch before it.

        ``LogManager.truncate`` prepares it. Epochs that begin there or later are forgotten, also if the log ends there
        already. Raises ``StorageError``; the partition then takes no more appends until it is loaded again.
        """
        self._truncation.truncate_to(offset)

    def begin_at(self, offset: int) -> None:
        """Delete all records; the empty log starts at an offset. ``LogManager.begin_at`` prepares it.

        Raises ``StorageError``; the partition then takes no more appends until it is loaded again.
        """
        self._truncation.begin_at(offset)

    # --- durability ----------------------------------------------------------------------------------------

    def must_sync(self, result: AppendResult) -> bool:
        """Return whether an append must be synced (``flush``) before its acknowledgement.

        A duplicate must be synced too, because its first copy may not be synced yet.
        """
        recovery_point = self._offsets.recovery_point
        if result.last_offset < recovery_point:
            return False
        config = self._local.config
        return config.syncs_before_ack or self._offsets.end - recovery_point >= config.flush_messages

    def flush(self, up_to: int | None = None) -> None:
        """Sync all appended records, and raise the recovery point to the log end.

        A thread that calls this during another thread's sync waits for it, and one next sync serves all waiting
        threads. With ``up_to``, nothing is done if all records before that offset are synced.

        Raises ``StorageError``. After a failed sync the content of the disk is unknown, so the partition takes no more
        appends until it is loaded again.
        """
        self._flusher.flush(up_to)

    def tick(self, *, producer_expiration_ms: int) -> None:
        """Do the work that is due: flush, expire producers, remove files of deleted segments."""
        if self._flusher.is_due:
            self.flush()
        with self._local.lock:
            self._producers.states.expire(self._local.clock.now_ms(), producer_expiration_ms)
        self._local.deleted_files.remove_due()

    def close(self) -> None:
        """Close cleanly: sync the log, trim the indexes, write a producer snapshot.

        Raises ``StorageError``; the partition must then be recovered at the next start.
        """
        self._flusher.close(self._producers.states)

    def release(self) -> None:
        """Release all files without a write. No appends are possible afterwards."""
        self._local.release()

    # --- deletion and compaction ---------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Raise the log start offset to an offset, unless it is higher already; returns the log start offset.

        Segments with no other records are deleted. The caller must write the new start before the answer.

        Raises ``PolicyViolationError`` unless the topic's policy deletes, ``OffsetOutOfRangeError`` for an offset that
        is negative or above the high watermark, ``StorageError``.
        """
        return self._deletion.delete_records(before_offset, self.remote)

    def apply_retention(self) -> int:
        """Delete the segments that the topic's retention allows; returns their number.

        Their files are renamed at once and removed after ``file.delete.delay.ms``, so that active readers are not
        disturbed.
        """
        return self._deletion.apply_retention(self.remote)

    def start_at(self, offset: int) -> None:
        """Raise the log start offset to ``offset``, unless it is higher already.

        Remote retention has deleted the records before it. Raises ``StorageError``.
        """
        self._deletion.raise_start(offset, self.remote)

    def future(self, directory: Path) -> FutureLog:
        """Return a copy of the log, to be made in ``directory``."""
        return FutureLog(self._local, self._epoch_cache, self._producers, directory)

    def replace_segments(self, replaced: Sequence[Segment], cleaned: CleanedSegment) -> None:
        """Replace consecutive sealed segments by a cleaned one, whose files are ready.

        Readers of the old segments continue with their files. Raises ``CleaningAbortedError`` when the segments are not
        part of the log any more. After a ``StorageError`` the partition takes no appends until it is loaded again.
        """
        replace_segments(self._local, replaced, cleaned)
