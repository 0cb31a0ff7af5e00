"""A segment's transaction index as the broker keeps it: written with each abort marker, rebuilt in recovery, checked.

An entry names what consumers are to pass over, so a wrong one would hide records or give them aborted ones. Entries
have no checksum: each is compared with the log before it is used, its marker and its first batch. (One that names a
later batch of the same transaction is found only by ``millrace log verify``, which reads all of them.)
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
from millrace_broker.log.producers import CompletedTransaction, ProducerStates
from millrace_broker.log.reading import floor
from millrace_broker.log.segment import Segment


def index_entry(completed: CompletedTransaction, producers: ProducerStates) -> AbortedTransaction:
    """Make the entry of an aborted transaction; ``producers`` are those at its marker.

    Its last stable offset is where the first of the other open transactions begins, or what follows the marker.
    """
    others = producers.first_open_offset(but=completed.producer_id)
    return AbortedTransaction(
        producer_id=completed.producer_id,
        first_offset=completed.first_offset,
        last_offset=completed.last_offset,
        last_stable_offset=completed.last_offset + 1 if others is None else others,
    )


def index_path(directory: Path, base_offset: int) -> Path:
    """Where the transaction index of a segment is, if it has one."""
    return directory / segment_file_name(base_offset, TRANSACTION_INDEX)


def replace_index(files: Files, path: Path, aborted: Sequence[AbortedTransaction]) -> None:
    """Put these entries in the place of an index, synced; without any there is no file."""
    if aborted:
        replace_file(files, path, b"".join(pack_aborted(transaction) for transaction in aborted))
    elif files.size_bytes(path) is not None:
        files.remove(path)


def aborted_transactions(segments: Sequence[Segment], start_offset: int, end_offset: int) -> list[AbortedTransaction]:
    """Collect the aborted transactions with records or their marker in ``start_offset..end_offset`` (exclusive).

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
    # What is behind the whole entries may be one that is being written.
    for transaction in read_aborted(data[: len(data) // ABORTED_ENTRY_BYTES * ABORTED_ENTRY_BYTES]):
        # By this offset a look-up ends early.
        if not stable_offset <= transaction.last_stable_offset <= transaction.last_offset + 1:
            raise CorruptBatchError(
                f"{index_path(segment.path.parent, segment.base_offset)}: {transaction} cannot be: have it built anew "
                "(millrace log repair)"
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
    # Retention and compaction may have taken the first batch, but nothing else can be there.
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
            f"{index_path(marker_segment.path.parent, marker_segment.base_offset)}: the log has no aborted transaction "
            f"of producer {transaction.producer_id} at {transaction.first_offset}..{transaction.last_offset}: "
            "have the index built anew (millrace log repair)"
        )
