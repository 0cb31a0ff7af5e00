"""The appends of a leader to a partition's log (Kafka's ``UnifiedLog.appendAsLeader``).

They assign offsets and leader epochs, and check the states of producers.

Invariant: A refused append has no effect. ``LocalLog`` has the invariants of failed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.config.topic import MessageTimestampType
from millrace.errors import (
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    InvalidRequestError,
    RecordListTooLargeError,
    StorageError,
)
from millrace.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    BatchHeader,
    ControlType,
    EndTransactionMarker,
    build_end_marker_batch,
    read_header,
)
from millrace_broker.log.aborted_transactions import index_entry
from millrace_broker.log.files import Part
from millrace_broker.log.leader_epoch_cache import LeaderEpochFileCache
from millrace_broker.log.local_log import LocalLog
from millrace_broker.log.offset_assignment import AssignedBatches, assign_offsets, set_append_time
from millrace_broker.log.producer_state_manager import ProducerStateManager
from millrace_broker.log.producer_states import Origin, ProducerEntry, append_batch, end_transaction
from millrace_broker.log.segment_appender import SegmentAppender
from millrace_broker.log.validation import ProducedBatches


class AppendResult(NamedTuple):
    """The offsets of appended batches. ``log_append_time_ms`` is -1 where timestamps are the producer's.

    ``is_duplicate`` means that the batch was appended before; the offsets are those of that append.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False


class LeaderAppender:
    """The appends of producers and coordinators to one log."""

    def __init__(self, local: LocalLog, epoch_cache: LeaderEpochFileCache, producers: ProducerStateManager) -> None:
        self._local: Final = local
        self._offsets: Final = local.offsets
        self._epoch_cache: Final = epoch_cache
        self._producers: Final = producers

    def append(
        self, produced: ProducedBatches, leader_epoch: int, origin: Origin, *, may_wait: bool
    ) -> AppendResult | None:
        """Append a producer's batches as ``PartitionLog.append_unsynced`` does. The caller holds the lock."""
        local, batches = self._local, produced.headers
        records: Part = produced.data
        segment_bytes = local.config.segment_bytes
        if len(records) > segment_bytes:
            raise RecordListTooLargeError(
                f"{len(records)} bytes of batches do not fit into a segment of {segment_bytes} bytes "
                "(segment.bytes): send fewer at once"
            )
        local.check_online()
        self._check_epoch(leader_epoch)
        now_ms = local.clock.now_ms()
        duplicate = self._find_duplicate(batches) if origin is Origin.CLIENT else None
        if duplicate is not None:
            return duplicate
        assigned = assign_offsets(batches, self._offsets.end, leader_epoch)
        producer = self._judge_producer(assigned, origin)
        append_time_ms = -1
        if local.config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME:
            append_time_ms = now_ms
            records, assigned = set_append_time(records, assigned, now_ms)
        appender = self._ready_appender(assigned.headers, len(records), leader_epoch, now_ms)
        if appender is None:
            if not may_wait:
                return None
            appender = self._new_appender(assigned.headers, len(records), leader_epoch, now_ms)
        self._write(appender, assigned, records, producer, now_ms)
        return AppendResult(
            base_offset=assigned.headers[0].base_offset,
            last_offset=assigned.headers[-1].last_offset,
            log_append_time_ms=append_time_ms,
            log_start_offset=self._offsets.start,
        )

    def _write(
        self,
        appender: SegmentAppender,
        assigned: AssignedBatches,
        records: Part,
        producer: ProducerEntry | None,
        now_ms: int,
    ) -> None:
        """Write batches, and update the producer's state; ``producer`` is its entry after them."""
        local, parts = self._local, assigned.parts(records)
        if producer is None:
            local.write(appender, parts, assigned.headers, len(records))
            return
        # The records of a transaction are undecided for consumers as soon as they are readable.
        self._producers.prepare(producer)
        try:
            local.write(appender, parts, assigned.headers, len(records))
        except StorageError:
            self._producers.undo()
            raise
        self._producers.update(producer, now_ms)

    def append_end_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        *,
        leader_epoch: int,
        is_epoch_raised: bool,
        may_wait: bool,
    ) -> AppendResult | None:
        """Append an end marker as ``PartitionLog.append_end_marker_unsynced`` does. The caller holds the lock."""
        local, producers = self._local, self._producers
        local.check_online()
        self._check_epoch(leader_epoch)
        now_ms, offset = local.clock.now_ms(), self._offsets.end
        before = producers.states.get(producer_id)
        if is_epoch_raised and before.has_open_transaction(producer_epoch):
            raise InvalidProducerEpochError(
                f"marker for producer {producer_id} with epoch {producer_epoch} comes late to {local.name}: the "
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
        aborted = [index_entry(completed, producers.states)] if completed is not None and is_aborted else []
        appender = self._ready_appender([header], len(batch), leader_epoch, now_ms)
        if not may_wait and (aborted or appender is None):
            return None
        if appender is None:
            appender = self._new_appender([header], len(batch), leader_epoch, now_ms)
        # A transaction is undecided for consumers until its marker is readable.
        producers.complete(completed, self._offsets.high_watermark)
        local.write(appender, [batch], [header], len(batch), aborted)
        producers.update(entry, now_ms)
        return AppendResult(
            base_offset=offset, last_offset=offset, log_append_time_ms=-1, log_start_offset=self._offsets.start
        )

    # --- checks --------------------------------------------------------------------------------------------

    def _check_epoch(self, leader_epoch: int) -> None:
        latest = self._epoch_cache.epochs.latest
        if leader_epoch < 0:
            raise InvalidRequestError(f"leader epoch {leader_epoch} of {self._local.name} is negative")
        if latest is not None and leader_epoch < latest:
            raise FencedLeaderEpochError(
                f"append to {self._local.name} under leader epoch {leader_epoch}, its log has batches of epoch {latest}"
            )

    def _find_duplicate(self, batches: Sequence[tuple[int, BatchHeader]]) -> AppendResult | None:
        header = batches[0][1]
        if header.producer_id == NO_PRODUCER_ID:
            return None
        duplicate = self._producers.states.get(header.producer_id).find_duplicate(header)
        if duplicate is None:
            return None
        is_append_time = self._local.config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME
        return AppendResult(
            base_offset=duplicate.first_offset,
            last_offset=duplicate.last_offset,
            log_append_time_ms=duplicate.timestamp_ms if is_append_time else -1,
            log_start_offset=self._offsets.start,
            is_duplicate=True,
        )

    def _judge_producer(self, assigned: AssignedBatches, origin: Origin) -> ProducerEntry | None:
        header = assigned.headers[0]
        if header.producer_id == NO_PRODUCER_ID:
            return None
        entry = self._producers.states.get(header.producer_id)
        is_unknown = entry.epoch == NO_PRODUCER_EPOCH
        lowest = self._producers.states.lowest_sequence(entry.producer_id) if is_unknown else None
        return append_batch(entry, header, origin, lowest_sequence=lowest)

    # --- the active segment --------------------------------------------------------------------------------

    def _ready_appender(
        self, headers: Sequence[BatchHeader], size_bytes: int, leader_epoch: int, now_ms: int
    ) -> SegmentAppender | None:
        """Return an appender for these batches if that needs no new file, else None."""
        appender, epoch_cache = self._local.appender, self._epoch_cache
        if appender is None or leader_epoch != epoch_cache.epochs.latest or epoch_cache.has_unwritten:
            return None
        return None if self._local.must_roll(appender, headers, size_bytes, now_ms) else appender

    def _new_appender(
        self, headers: Sequence[BatchHeader], size_bytes: int, leader_epoch: int, now_ms: int
    ) -> SegmentAppender:
        """Return an appender for these batches; create files if necessary."""
        self._epoch_cache.assign((leader_epoch, self._offsets.end))
        return self._local.appender_for(headers, size_bytes, now_ms, self._producers.states)
