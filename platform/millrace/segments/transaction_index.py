"""Index of a segment's aborted transactions (Kafka's ``TransactionIndex``).

A ``.txnindex`` file holds entries of 34 bytes, big-endian::

    i16 version (0)
    i64 producer id
    i64 first offset
    i64 last offset, that of the abort marker
    i64 last stable offset when the marker was written

Entries ascend by last offset. An entry is in the segment that holds its abort marker. A segment without aborted
transactions has no such file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from millrace.errors import CorruptBatchError

ABORTED_ENTRY_BYTES: Final = 34
_ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """Aborted transaction in a partition (Kafka's ``AbortedTxn``).

    Its records from the first offset up to the marker at the last offset are not committed.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def read_aborted(buffer: Bytes) -> Iterator[AbortedTransaction]:
    """Read the entries of an index file.

    Raises ``CorruptBatchError`` for an unknown version, an incomplete entry, or impossible offsets.
    """
    if len(buffer) % ABORTED_ENTRY_BYTES:
        raise CorruptBatchError(f"a transaction index of {len(buffer)} bytes: its entries have {ABORTED_ENTRY_BYTES}")
    for version, producer_id, first_offset, last_offset, last_stable_offset in _ENTRY.iter_unpack(buffer):
        if version != _VERSION or not 0 <= first_offset <= last_offset:
            raise CorruptBatchError(
                f"transaction index entry of version {version} with offsets {first_offset}..{last_offset}"
            )
        yield AbortedTransaction(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=last_offset,
            last_stable_offset=last_stable_offset,
        )


def pack_aborted(transaction: AbortedTransaction) -> bytes:
    """Write an entry."""
    return _ENTRY.pack(
        _VERSION,
        transaction.producer_id,
        transaction.first_offset,
        transaction.last_offset,
        transaction.last_stable_offset,
    )


def collect_aborted(
    indexes: Iterable[Iterable[AbortedTransaction]], start_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """Collect the aborted transactions that have records or their marker in ``start_offset..end_offset`` (exclusive).

    ``indexes`` are those of the segment with ``start_offset`` and of all later segments. The function reads only as
    many as necessary. After the last stable offset has reached the end, no later entry can belong to a transaction
    within the range.
    """
    found = []
    for index in indexes:
        for transaction in index:
            if transaction.last_offset >= start_offset and transaction.first_offset < end_offset:
                found.append(transaction)
            if transaction.last_stable_offset >= end_offset:
                return found
    return found
