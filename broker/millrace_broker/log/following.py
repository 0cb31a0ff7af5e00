"""The follower's operations on a partition's log: replicated appends and truncation.

Invariants:

- An appended batch is byte for byte the leader's batch, with its offset, epoch and times. Only checksums and the order
  of offsets are checked.
- The high watermark is set from outside while there are other replicas (``hold_watermark``), and is at most the end.
- Truncation removes segments from the end on, each durably before the previous one, and then truncates the last one
  durably. A crash leaves the log longer than intended, but never with a hole. No truncated record comes back after a
  record that replaced it. Epochs are forgotten only after their records.
- The recovery point on the disk is never beyond a log's end. It is lowered and written before a truncation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from millrace.errors import CorruptBatchError, StorageError
from millrace.records import NO_PRODUCER_ID, BatchHeader, scan_headers, verify_crc
from millrace.records.header import ReadableBuffer, as_arrow_buffer
from millrace.segments.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from millrace.segments.names import SNAPSHOT, segment_file_name
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log.aborted import index_entry
from millrace_broker.log.appendable import AppendableLog
from millrace_broker.log.appender import RELATIVE_OFFSET_MAX, SegmentAppender
from millrace_broker.log.checkpoints import LEADER_EPOCHS, write_epochs
from millrace_broker.log.index_building import IndexBuilder
from millrace_broker.log.leader_epochs import LeaderEpochs
from millrace_broker.log.producer_loading import ended_since, load_producers, replayed_end, snapshot_offsets
from millrace_broker.log.producers import CompletedTransaction, ProducerEntry, ProducerStates
from millrace_broker.log.reading import floor
from millrace_broker.log.recent import NOTHING_RECENT
from millrace_broker.log.segment import Segment

_LOG: Final = logging.getLogger(__name__)

Batches = Sequence[tuple[int, BatchHeader]]
"""The position and header of each batch."""


def check_replicated(records: ReadableBuffer) -> Batches:
    """Check that a leader's answer has whole batches with correct checksums and ascending offsets.

    Raises ``CorruptBatchError``.
    """
    whole = as_arrow_buffer(records)
    batches = list(scan_headers(memoryview(whole)))
    end = batches[-1][0] + batches[-1][1].size_bytes if batches else 0
    if end != len(whole):
        raise CorruptBatchError(f"{len(whole) - end} bytes at position {end} of a leader's answer are no whole batch")
    least_offset = 0
    for position, header in batches:
        verify_crc(whole, position, header)
        if header.base_offset < least_offset or header.last_offset_delta < 0:
            raise CorruptBatchError(f"a leader's batch of offset {header.base_offset} comes after {least_offset - 1}")
        least_offset = header.next_offset
    return batches


class FollowingLog(AppendableLog):
    """A partition's log with the operations of replicas."""

    # --- high watermark --------------------------------------------------------------------------------------

    @property
    def epochs(self) -> LeaderEpochs:
        """The start offsets of the leader epochs; the caller must not change them."""
        return self._epochs

    def hold_watermark(self, offset: int) -> None:
        """Set the high watermark to ``offset``, or as near as the log allows.

        Only ``raise_watermark`` moves it from now on. It may go back, for example in a log that was just loaded.
        Transactions with markers after it are undecided again.
        """
        with self._lock:
            self._is_only_replica = False
            before = self._high_watermark
            self._high_watermark = max(self._log_start_offset, min(offset, self._log_end_offset))
            if self._high_watermark < before and len(self._producers):
                self._ended = ended_since(
                    self._files, self.directory, self._segments, self._high_watermark, self._clock.now_ms()
                )

    def raise_watermark(self, offset: int) -> None:
        """Raise the high watermark to ``offset``; it does not go back.

        All replicas in sync have the records before it. The one caller that decides about the high watermark needs no
        lock, and so does not wait for an append.
        """
        self._high_watermark = max(self._high_watermark, min(offset, self._log_end_offset))

    def release_watermark(self) -> None:
        """Let the high watermark follow the log end, because there is no other replica."""
        with self._lock:
            self._is_only_replica = True
            self._follow_end()

    def begin_epoch(self, leader_epoch: int) -> None:
        """Begin a leader epoch at the log end.

        It is written before the first append in it. Until then a crash may lose it, but no records with it.
        """
        with self._lock:
            epochs = LeaderEpochs(self._epochs.entries)
            if epochs.assign(leader_epoch, self._log_end_offset):
                self._epochs, self._has_unwritten_epoch = epochs, True

    # --- appends ---------------------------------------------------------------------------------------------

    def takes_at_once(self, size_bytes: int) -> bool:
        """Return whether appending ``size_bytes`` of a leader's batches needs only a write: no sync, no new file."""
        appender = self._appender
        is_open = appender is not None and appender.segment.size_bytes + size_bytes <= self._config.segment_bytes
        return not size_bytes or (is_open and not self._config.syncs_before_ack)

    def append_replicated(self, records: ReadableBuffer, batches: Batches) -> int:
        """Append a leader's batches unchanged (``check_replicated``); returns the new log end offset.

        Raises ``CorruptBatchError`` for offsets that the log has already, and ``StorageError`` when the disk fails; the
        log then keeps the batches before the failed one.
        """
        view = memoryview(as_arrow_buffer(records))
        with self._lock:
            self._check_online()
            if batches and batches[0][1].base_offset < self._log_end_offset:
                raise CorruptBatchError(
                    f"{self.name} ends at offset {self._log_end_offset}, the leader sent offset "
                    f"{batches[0][1].base_offset}"
                )
            for run in _runs(batches, self._config.segment_bytes):
                self._append_run(view, run)
            return self._log_end_offset

    def _append_run(self, view: memoryview, run: Batches) -> None:
        """Append batches that fit into one segment. A control batch is alone."""
        headers = [header for _, header in run]
        start, size_bytes = run[0][0], sum(header.size_bytes for header in headers)
        records, now_ms = view[start : start + size_bytes], self._clock.now_ms()
        ended = replayed_end(self._producers, headers[0], bytes(records)) if headers[0].is_control else None
        appender = self._follower_appender(headers, size_bytes, now_ms)
        self._write(appender, [records], headers, size_bytes, self._aborted_by(ended))
        if ended is not None:
            self._producers.update(ended[0], now_ms)
            undecided = [each for each in self._ended if each.last_offset >= self._high_watermark]
            self._ended = (*undecided, *(() if ended[1] is None else (ended[1],)))
        for header in headers:
            if header.producer_id != NO_PRODUCER_ID and not header.is_control:
                self._producers.replay(header, now_ms)
        self._first_open_offset = self._producers.first_open_offset()

    def _aborted_by(self, ended: tuple[ProducerEntry, CompletedTransaction | None] | None) -> list[AbortedTransaction]:
        completed = None if ended is None else ended[1]
        return [index_entry(completed, self._producers)] if completed is not None and completed.is_aborted else []

    def _follower_appender(self, headers: Sequence[BatchHeader], size_bytes: int, now_ms: int) -> SegmentAppender:
        latest = -1 if self._epochs.latest is None else self._epochs.latest
        begun = []
        for header in headers:
            if header.partition_leader_epoch > latest:
                latest = header.partition_leader_epoch
                begun.append((latest, header.base_offset))
        if begun:
            self._note_epochs(*begun)
        appender = self._appender or self._open_appender(now_ms)
        return self.roll() if self._must_roll(appender, headers, size_bytes, now_ms) else appender

    # --- truncation ------------------------------------------------------------------------------------------

    def lower_recovery_point(self, offset: int) -> bool:
        """Lower the recovery point before a truncation to ``offset``; returns whether the checkpoint must be
        written.
        """
        with self._sync_lock, self._lock:
            is_inside = self._segments[0].base_offset <= offset < self._log_end_offset
            end_offset = self._cut_of(offset)[2] if is_inside else offset
            is_news = end_offset < self._recovery_point
            self._recovery_point = min(self._recovery_point, end_offset)
            return is_news

    def _cut_of(self, offset: int) -> tuple[Segment, int, int]:
        """Return where to cut the log before an offset: the segment, the position, and the resulting log end offset.

        Compaction may have left a gap before the offset. The resulting end is the start of that gap then.
        """
        segment = self._segments[floor(self._segments, offset)]
        found = segment.find(offset)
        position = segment.size_bytes if found is None else found[0]
        return segment, position, segment.end_before(position)

    def truncate_to(self, offset: int) -> None:
        """Truncate the log to an offset, or to the end of the last batch before it.

        ``LogManager.truncate`` prepares it. Epochs that begin there or later are forgotten, also if the log ends there
        already. Raises ``StorageError``; the partition then takes no more appends until it is loaded again.
        """
        with self._sync_lock, self._lock:
            self._check_online()
            try:
                if offset < self._segments[0].base_offset:
                    self._begin_at(offset)
                    return
                if offset < self._log_end_offset:
                    self._cut_at(offset)
                epochs = LeaderEpochs(self._epochs.entries)
                if epochs.truncate_end(min(offset, self._log_end_offset)):
                    self._write_epochs(epochs)
            except StorageError as error:
                self._failure = error
                raise

    def begin_at(self, offset: int) -> None:
        """Delete all records; the empty log starts at an offset. ``LogManager.begin_at`` prepares it.

        Raises ``StorageError``; the partition then takes no more appends until it is loaded again.
        """
        with self._sync_lock, self._lock:
            self._check_online()
            try:
                self._begin_at(offset)
            except StorageError as error:
                self._failure = error
                raise

    def _write_epochs(self, epochs: LeaderEpochs) -> None:
        write_epochs(self._files, self.directory / LEADER_EPOCHS, epochs.entries)
        self._epochs, self._has_unwritten_epoch = epochs, False

    def _cut_at(self, offset: int) -> None:
        segment, position, end_offset = self._cut_of(offset)
        was_readable = self._high_watermark
        _LOG.info("%s: truncated from offset %d to %d", self.name, self._log_end_offset, end_offset)
        self._end_at(end_offset)
        self._remove_last(self._segments.index(segment) + 1)
        if position < segment.size_bytes:
            # Readers do not know records after the high watermark, so no reader has them mapped.
            segment = self._cut_segment(segment, position, end_offset, in_place=end_offset >= was_readable)
        self._open_appender(self._clock.now_ms())
        self._load_producers_again(segment, end_offset)

    def _end_at(self, end_offset: int) -> None:
        """Lower the offsets in memory to ``end_offset``, before the records go from the disk."""
        self._log_start_offset = min(self._log_start_offset, end_offset)
        self._high_watermark = min(self._high_watermark, end_offset)
        self._log_end_offset = end_offset
        self._recovery_point = min(self._recovery_point, end_offset)
        self._recent = NOTHING_RECENT
        self._appender = None

    def _remove_last(self, kept: int) -> None:
        """Remove all segments after the first ``kept``, the last one first and each durably."""
        gone = self._segments[kept:]
        if kept:
            self._segments = self._segments[:kept]
        for segment in reversed(gone):
            segment.leave()
            self._deleted.rename_segment(self.directory, segment.base_offset, self._config.file_delete_delay_ms)
            self._files.sync_directory(self.directory)
        self._unsynced_sealed = [each for each in self._unsynced_sealed if each.segment not in gone]

    def _cut_segment(self, segment: Segment, position: int, end_offset: int, *, in_place: bool) -> Segment:
        """Truncate a segment to ``position``, durably, with its indexes. Returns the segment that replaces it."""
        offsets, times = segment.indexes()
        builder = IndexBuilder(segment.base_offset, segment.index_interval_bytes)
        offset_count = sum(1 for entry in offsets if entry.position < position)
        time_count = sum(1 for entry in times if entry.offset < end_offset)
        builder.offset_bytes[:] = bytes(offsets.buffer[: offset_count * OFFSET_ENTRY_BYTES])
        builder.time_bytes[:] = bytes(times.buffer[: time_count * TIME_ENTRY_BYTES])
        segment.leave()
        self._unsynced_sealed = [each for each in self._unsynced_sealed if each.segment is not segment]
        loader = self._loader()
        loader.cut(segment, position, in_place=in_place)
        loader.sync(segment)
        builder.write(self._files, segment.offset_index_path, segment.time_index_path)
        shorter = loader.open_segment(segment.base_offset, position)
        self._segments = (*self._segments[:-1], shorter)
        return shorter

    def _load_producers_again(self, last: Segment, end_offset: int) -> None:
        """Load the producer states at the new end again; this also rebuilds the last segment's transaction index."""
        self._ended = tuple(each for each in self._ended if each.last_offset < end_offset)
        if not len(self._producers) and not last.transaction_index():
            return
        self._producers = load_producers(
            self._files,
            self.directory,
            self._segments,
            end_offset,
            self._clock.now_ms(),
            recovered_from=last.base_offset,
        )
        self._first_open_offset = self._producers.first_open_offset()

    def _begin_at(self, offset: int) -> None:
        _LOG.info("%s: begins anew at offset %d, it had %d..%d", self.name, offset, *self._span())
        self._end_at(self._log_start_offset)
        self._remove_last(0)
        self._remove_snapshots()
        self._write_epochs(LeaderEpochs())
        first = self._loader().create_segment(offset)
        self._log_start_offset = self._log_end_offset = self._high_watermark = offset
        self._segments = (first,)
        self._recovery_point = offset
        self._producers, self._first_open_offset, self._ended = ProducerStates(), None, ()

    def _span(self) -> tuple[int, int]:
        return self._log_start_offset, self._log_end_offset - 1

    def _remove_snapshots(self) -> None:
        for offset in snapshot_offsets(self._files, self.directory):
            self._files.remove(self.directory / segment_file_name(offset, SNAPSHOT))


def _runs(batches: Iterable[tuple[int, BatchHeader]], size_bytes_max: int) -> Iterator[Batches]:
    """Cut batches into runs that fit into a segment, with at least one batch each; control batches are alone."""
    run: list[tuple[int, BatchHeader]] = []
    size_bytes = 0
    for position, header in batches:
        is_full = size_bytes + header.size_bytes > size_bytes_max
        if run and (is_full or header.is_control or _is_far(run[0][1], header)):
            yield run
            run, size_bytes = [], 0
        run.append((position, header))
        size_bytes += header.size_bytes
        if header.is_control:
            yield run
            run, size_bytes = [], 0
    if run:
        yield run


def _is_far(first: BatchHeader, header: BatchHeader) -> bool:
    return header.last_offset - first.base_offset > RELATIVE_OFFSET_MAX
