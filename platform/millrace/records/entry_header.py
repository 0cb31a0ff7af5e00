"""Header of a segment's entry: a batch or a legacy message.

A log from before Kafka 0.11 begins with messages of magic 0 or 1 and continues with batches. A walk over the log
needs the size, the offsets and the largest timestamp of every entry. A message gives them only when it is read, a
wrapper only when it is decompressed. Therefore this module reads messages wholly and verifies their checksums. A
returned header never belongs to a damaged message.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import CorruptBatchError, MillraceError
from millrace.records.compression import Compression
from millrace.records.header import (
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    ReadableBuffer,
    read_header,
)
from millrace.records.legacy import MESSAGE_BYTES_MIN, unwrap
from millrace.records.message_set import MAGIC_BYTE, MAGIC_POSITION, OFFSET_AND_LENGTH, MessageEntry

_NO_EPOCH: Final = -1


def message_bytes(buffer: ReadableBuffer, position: int = 0) -> int | None:
    """Return the size of the message of magic 0 or 1 at ``position``; None for everything else."""
    if len(buffer) - position <= MAGIC_POSITION:
        return None
    (magic,) = MAGIC_BYTE.unpack_from(buffer, position + MAGIC_POSITION)
    _, length = OFFSET_AND_LENGTH.unpack_from(buffer, position)
    return LOG_OVERHEAD_BYTES + length if 0 <= magic < MAGIC and length >= MESSAGE_BYTES_MIN else None


def read_entry_header(buffer: ReadableBuffer, position: int = 0) -> BatchHeader:
    """Read the header of the batch at ``position``, or of the message there, which must be complete.

    The header of a message has magic 0 or 1, no leader epoch and no producer; ``count`` counts its messages. Raises
    ``CorruptBatchError`` like ``read_header``, and for a message that is incomplete or damaged.
    """
    size = message_bytes(buffer, position)
    if size is None:
        return read_header(buffer, position)
    if size > len(buffer) - position:
        raise CorruptBatchError(f"message at position {position} has {len(buffer) - position} of {size} bytes")
    entry = MessageEntry(buffer, position, size)
    entry.check()
    try:
        offsets = [inner.offset for inner in unwrap(entry.message)]
        is_plain = entry.compression is Compression.NONE
    except CorruptBatchError:
        raise
    except MillraceError as error:
        raise CorruptBatchError(f"message at position {position} cannot be read: {error.message}") from error
    base_offset = entry.last_offset if is_plain or not offsets else offsets[0]
    return BatchHeader(
        base_offset=base_offset,
        batch_length=size - LOG_OVERHEAD_BYTES,
        partition_leader_epoch=_NO_EPOCH,
        magic=entry.magic,
        crc=entry.message.crc,
        attributes=entry.message.attributes,
        last_offset_delta=entry.last_offset - base_offset,
        base_timestamp=entry.max_timestamp_ms,
        max_timestamp=entry.max_timestamp_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        count=max(len(offsets), 1),
    )
