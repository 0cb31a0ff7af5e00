"""The loading of a partition's producer states at start.

They come from the newest good snapshot and the batches after it. A snapshot keeps only the last batch of each producer.
But a producer may retry its last five batches if their acknowledgements were lost with the broker. So the batches
shortly before the snapshot are read too, as far as that is cheap.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from millrace.errors import DiskFullError, StorageError
from millrace.records import NO_PRODUCER_ID, BatchHeader, ControlType, read_end_marker, read_rows
from millrace.segments.names import SNAPSHOT, parse_segment_file_name, segment_file_name
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log.aborted_transactions import index_entry, index_path, replace_index
from millrace_broker.log.files import Files, Part, replace_file
from millrace_broker.log.producer_snapshots import read_snapshot, write_snapshot
from millrace_broker.log.producer_states import (
    BATCHES_KEPT,
    CompletedTransaction,
    Origin,
    ProducedBatch,
    ProducerEntry,
    ProducerStates,
    end_transaction,
    produced_batch,
)
from millrace_broker.log.segment import Segment
from millrace_broker.log.segment_list import floor

_LOG: Final = logging.getLogger(__name__)
_RECALLED_INDEX_ENTRIES: Final = 32
_RECALLED_SEGMENTS: Final = 2


def rebuild_producer_states(
    files: Files,
    directory: Path,
    snapshots: Sequence[int],
    segments: Sequence[Segment],
    log_end_offset: int,
    now_ms: int,
    *,
    recovered_from: int | None = None,
) -> ProducerStates:
    """Return the producer states at the log end; remove snapshots that are damaged or beyond the end.

    ``snapshots`` are the directory's ``snapshot_offsets``. Those beyond ``recovered_from``, the first recovered
    segment, are removed too. A snapshot is synced when it is written, but its batches may have been lost. The
    transaction indexes of recovered segments are rebuilt. Missing snapshots at the starts of segments that had to be
    read are written, unless the disk is full.
    """
    snapshot_end = log_end_offset if recovered_from is None else min(recovered_from, log_end_offset)
    for offset in snapshots:
        if offset > snapshot_end:
            files.remove(directory / segment_file_name(offset, SNAPSHOT))
    kept = [offset for offset in snapshots if offset <= snapshot_end]
    producers, start_offset = _load_snapshot(files, directory, kept, segments[0].base_offset, now_ms)
    _recall(producers, segments, start_offset, now_ms)
    for segment in segments[floor(segments, start_offset) :]:
        if segment is not segments[0] and segment.base_offset > start_offset:
            try:
                write_snapshot_file(files, directory, segment.base_offset, producers)
            except DiskFullError as error:
                _LOG.warning("%s; the producers are read from the log until a later segment", error.message)
        found = segment.find(start_offset) if start_offset < log_end_offset else None
        aborted: list[AbortedTransaction] = []
        for position, header in segment.batches(found[0]) if found else ():
            aborted += [entry for _, entry in _replay(producers, segment, position, header, now_ms) if entry]
        if recovered_from is not None and segment.base_offset >= recovered_from:
            replace_index(files, index_path(directory, segment.base_offset), aborted)
    return producers


def ended_since(
    files: Files, directory: Path, segments: Sequence[Segment], offset: int, now_ms: int
) -> tuple[CompletedTransaction, ...]:
    """Return the transactions whose end markers are at or after an offset, in the order of the markers."""
    if not any(header.is_control for _, _, header in _batches(segments, offset)):
        return ()
    # The starts of transactions follow only from the producer states before them.
    before = [each for each in snapshot_offsets(files.names(directory)) if each <= offset]
    producers, start_offset = _load_snapshot(files, directory, before, segments[0].base_offset, now_ms)
    ended = [
        completed
        for segment, position, header in _batches(segments, start_offset)
        for completed, _ in _replay(producers, segment, position, header, now_ms)
    ]
    return tuple(completed for completed in ended if completed.last_offset >= offset)


def _batches(segments: Sequence[Segment], start_offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """Iterate over the batches from an offset on, with segment and position."""
    for segment in segments[floor(segments, start_offset) :]:
        found = segment.find(start_offset)
        for position, header in segment.batches(found[0]) if found else ():
            yield segment, position, header


def _load_snapshot(
    files: Files, directory: Path, snapshots: Sequence[int], first_offset: int, now_ms: int
) -> tuple[ProducerStates, int]:
    """Read the newest good one of these snapshots; returns the states, and the offset to read the log from.

    Newer damaged snapshots are removed.
    """
    producers = ProducerStates()
    for offset in reversed(snapshots):
        path = directory / segment_file_name(offset, SNAPSHOT)
        try:
            entries = read_snapshot(files.read_bytes(path) or b"")
        except StorageError as error:
            _LOG.warning("%s: %s; reading the log instead", path, error.message)
            files.remove(path)
            continue
        for entry in entries:
            producers.update(entry, now_ms)
        return producers, offset
    return producers, first_offset


def _recall(producers: ProducerStates, segments: Sequence[Segment], offset: int, now_ms: int) -> None:
    """Add the batches shortly before ``offset`` to each producer's last batch."""
    if not len(producers):
        return
    recalled: dict[int, list[ProducedBatch]] = defaultdict(list)
    for segment in [segment for segment in segments if segment.base_offset < offset][-_RECALLED_SEGMENTS:]:
        offset_index, _ = segment.indexes()
        first = max(len(offset_index) - _RECALLED_INDEX_ENTRIES, 0)
        start = segment.find(offset_index[first].offset if first else segment.base_offset)
        for _, header in segment.batches(start[0]) if start else ():
            if header.next_offset > offset:
                break
            is_data = header.producer_id != NO_PRODUCER_ID and not header.is_control
            if is_data and header.producer_epoch == producers.get(header.producer_id).epoch:
                recalled[header.producer_id].append(produced_batch(header))
    for producer_id, batches in recalled.items():
        entry = producers.get(producer_id)
        if entry.batches and batches[-1].last_offset == entry.last_offset:
            producers.update(entry._replace(batches=tuple(batches[-BATCHES_KEPT:])), now_ms)


def _replay(
    producers: ProducerStates, segment: Segment, position: int, header: BatchHeader, now_ms: int
) -> Iterator[tuple[CompletedTransaction, AbortedTransaction | None]]:
    """Apply a batch, and yield the transaction that it ended, with its index entry if it was aborted."""
    if header.producer_id == NO_PRODUCER_ID:
        return
    if not header.is_control:
        producers.replay(header, now_ms)
        return
    ended = replayed_end(producers, header, segment.read(position, header.size_bytes))
    if ended is None:
        return
    entry, completed = ended
    if completed is not None:
        yield completed, index_entry(completed, producers) if completed.is_aborted else None
    producers.update(entry, now_ms)


def replayed_end(
    producers: ProducerStates, header: BatchHeader, batch: Part
) -> tuple[ProducerEntry, CompletedTransaction | None] | None:
    """Return a producer's entry after a replicated or reloaded marker, and the transaction that it ended.

    Returns None if compaction has removed the marker from its batch.
    """
    for record in read_rows(batch, 0, header):
        marker = read_end_marker(record)
        return end_transaction(
            producers.get(header.producer_id),
            epoch=header.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            is_aborted=marker.type is ControlType.ABORT,
            offset=header.base_offset,
            timestamp_ms=header.max_timestamp,
            origin=Origin.REPLICATION,
        )
    return None


def write_snapshot_file(files: Files, directory: Path, offset: int, producers: ProducerStates) -> None:
    """Write the producer states at ``offset``. There is nothing to write at offset 0."""
    if offset > 0:
        replace_file(files, directory / segment_file_name(offset, SNAPSHOT), write_snapshot(producers))


def remove_snapshots(files: Files, directory: Path, *, kept: Container[int] = ()) -> None:
    """Remove the producer snapshots of a partition directory, except those at the ``kept`` offsets."""
    for offset in snapshot_offsets(files.names(directory)):
        if offset not in kept:
            files.remove(directory / segment_file_name(offset, SNAPSHOT))


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the producer snapshots among the names of a partition directory's files, in order."""
    parsed = (parse_segment_file_name(name) for name in names if name.endswith(SNAPSHOT))
    return sorted(found[0] for found in parsed if found is not None)
