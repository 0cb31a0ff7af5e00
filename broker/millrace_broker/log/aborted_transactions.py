"""A segment's transaction index, Kafka's ``TransactionIndex``.

The broker writes an entry with each abort marker, and rebuilds the index in recovery. An entry names records that
consumers skip, so a wrong entry would hide records or return aborted ones. Entries have no checksum. Before use, the
marker and the first batch of each entry are compared with the log. An entry that names a later batch of the same
transaction is found only by ``millrace log verify``, which reads all batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from millrace.errors import CorruptBatchError
from millrace.segments.names import TRANSACTION_INDEX, segment_file_name
from millrace.segments.transaction_index import (
    ABORTED_ENTRY_BYTES,
    AbortedTransaction,
    collect_aborted,
    pack_aborted,
    read_aborted,
)
from millrace_broker.log.files import Files, replace_file
from millrace_broker.log.producer_states import CompletedTransaction, ProducerStates
from millrace_broker.log.segment import Segment
from millrace_broker.log.segment_list import floor


def index_entry(completed: CompletedTransaction, producers: ProducerStates) -> AbortedTransaction:
    """Return the entry of an aborted transaction; ``producers`` are the states before its marker is applied.

    Its last stable offset is the first offset of the other open transactions, or the offset after the marker.
    """
    others = producers.first_open_offset(but=completed.producer_id)
    return AbortedTransaction(
        producer_id=completed.producer_id,
        first_offset=completed.first_offset,
        last_offset=completed.last_offset,
        last_stable_offset=completed.last_offset + 1 if others is None else others,
    )


def index_path(directory: Path, base_offset: int) -> Path:
    """Return the path of a segment's transaction index; the file may be missing."""
    return directory / segment_file_name(base_offset, TRANSACTION_INDEX)


def replace_index(files: Files, path: Path, aborted: Sequence[AbortedTransaction]) -> None:
    """Replace an index file by these entries, synced; without entries, remove the file.

    If the file begins with the entries, it is cut. That works on a full disk.
    """
    content = b"".join(pack_aborted(transaction) for transaction in aborted)
    if content and (files.read_bytes(path) or b"").startswith(content):
        file = files.open(path)
        file.truncate(len(content))
        file.sync()
        file.close()
        files.sync_directory(path.parent)
    elif content:
        replace_file(files, path, content)
    elif files.size_bytes(path) is not None:
        files.remove(path)


def aborted_transactions(segments: Sequence[Segment], start_offset: int, end_offset: int) -> list[AbortedTransaction]:
    """Return the aborted transactions with records or their marker in ``start_offset..end_offset`` (exclusive).

    Raises ``CorruptBatchError`` for an index that does not agree with the log.
    """
    last = segments[-1]
    indexes = (_read(segment, is_sealed=segment is not last) for segment in segments[floor(segments, start_offset) :])
    found = collect_aborted(indexes, start_offset, end_offset)
    for transaction in found:
        _check(segments, transaction)
    return found


def _read(segment: Segment, *, is_sealed: bool) -> Iterator[AbortedTransaction]:
    data = segment.transaction_index(is_sealed=is_sealed)
    stable_offset = 0
    # Bytes after the last whole entry may belong to an entry that is being written.
    for transaction in read_aborted(data[: len(data) // ABORTED_ENTRY_BYTES * ABORTED_ENTRY_BYTES]):
        # A look-up stops early at the last stable offset.
        if not stable_offset <= transaction.last_stable_offset <= transaction.last_offset + 1:
            raise CorruptBatchError(
                f"{index_path(segment.path.parent, segment.base_offset)} has an invalid entry, {transaction}: "
                "rebuild the index (millrace log repair)"
            )
        stable_offset = transaction.last_stable_offset
        yield transaction


def _check(segments: Sequence[Segment], transaction: AbortedTransaction) -> None:
    marker_segment = segments[floor(segments, transaction.last_offset)]
    marker = marker_segment.find(transaction.last_offset)
    is_marker = (
        marker is not None
        and marker[1].is_control
        and (marker[1].producer_id, marker[1].base_offset) == (transaction.producer_id, transaction.last_offset)
    )
    first_segment = segments[floor(segments, transaction.first_offset)]
    first = first_segment.find(transaction.first_offset)
    # Retention and compaction may have removed the first batch, but no other batch can be at its offset.
    is_first = (
        first is None
        or first[1].base_offset > transaction.first_offset
        or (
            (first[1].producer_id, first[1].base_offset) == (transaction.producer_id, transaction.first_offset)
            and first[1].is_transactional
            and not first[1].is_control
        )
    )
    if not (is_marker and is_first):
        raise CorruptBatchError(
            f"{index_path(marker_segment.path.parent, marker_segment.base_offset)}: the log has no aborted "
            f"transaction of producer {transaction.producer_id} at "
            f"{transaction.first_offset}..{transaction.last_offset}: rebuild the index (millrace log repair)"
        )
