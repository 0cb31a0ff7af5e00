"""Scan, checksum and offset assignment of batches.

None of them reads a body. Offsets and leader epoch lie outside the checksum, so their assignment changes only 12
bytes. The append time lies inside the checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from millrace.errors import CorruptBatchError
from millrace.records.header import (
    ATTRIBUTES_POSITION,
    CHECKED_FROM,
    CRC_POSITION,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    ReadableBuffer,
    as_arrow_buffer,
    checksum,
    read_header,
)
from millrace.records.statistics import sealed_section, section_of

_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_I64: Final = struct.Struct(">q")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_U32: Final = struct.Struct(">I")
_LEADER_EPOCH_POSITION: Final = 12
_MAX_TIMESTAMP_POSITION: Final = 35


def scan_headers(buffer: ReadableBuffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Walk the batches from ``position`` on and yield position and header of each; bodies are not read.

    The walk ends silently before an incomplete last batch, as Kafka's readers do, because a fetch may be cut
    anywhere. Raises ``CorruptBatchError`` at a batch with an impossible magic or length.
    """
    size = len(buffer)
    while size - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        following = position + header.size_bytes
        if following > size:
            return
        yield position, header
        position = following
    if size - position >= LOG_OVERHEAD_BYTES:
        # Too short for a header: the batch is incomplete unless its length says that it is complete.
        _, length = _OFFSET_AND_LENGTH.unpack_from(buffer, position)
        if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            raise CorruptBatchError(f"batch at position {position}: length {length} is below the header's 49")


def crc_matches(buffer: ReadableBuffer, position: int, header: BatchHeader) -> bool:
    """Return whether the batch at ``position``, wholly in ``buffer``, matches the checksum in its header."""
    whole = as_arrow_buffer(buffer)
    return checksum(whole.slice(position + CHECKED_FROM, header.size_bytes - CHECKED_FROM)) == header.crc


def verify_crc(buffer: ReadableBuffer, position: int, header: BatchHeader) -> None:
    """Verify a batch's checksum; raises ``CorruptBatchError`` if it is wrong or the batch is incomplete."""
    if position + header.size_bytes > len(buffer):
        raise CorruptBatchError(
            f"batch with base offset {header.base_offset} at position {position} has {len(buffer) - position} of its "
            f"{header.size_bytes} bytes"
        )
    if not crc_matches(buffer, position, header):
        raise CorruptBatchError(
            f"batch with base offset {header.base_offset} at position {position} fails its checksum "
            f"({header.size_bytes} bytes)"
        )


def assign_offsets(buffer: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into the batch at ``position``, in place; the checksum stays valid."""
    _I64.pack_into(buffer, position, base_offset)
    _I32.pack_into(buffer, position + _LEADER_EPOCH_POSITION, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Set the append time of the batch at ``position``, in place, with a new checksum.

    As in Kafka, only the timestamp type and the maximum timestamp change; readers ignore the records' own times.
    """
    header = read_header(buffer, position)
    verify_size = len(buffer) - position - header.size_bytes
    if verify_size < 0:
        raise CorruptBatchError(f"batch at position {position} is incomplete: {-verify_size} bytes are missing")
    attributes = header.attributes | TIMESTAMP_TYPE_BIT
    _I16.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes)
    _I64.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, now_ms)
    _seal_statistics(buffer, position)
    _seal(buffer, position, header)


def set_max_timestamp(buffer: bytearray, position: int, timestamp_ms: int) -> None:
    """Set the maximum timestamp of the batch of rows at ``position``, in place, with a new checksum."""
    _I64.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, timestamp_ms)
    _seal(buffer, position, read_header(buffer, position))


def _seal(buffer: bytearray | memoryview, position: int, header: BatchHeader) -> None:
    checked = pa.py_buffer(buffer).slice(position + CHECKED_FROM, header.size_bytes - CHECKED_FROM)
    _U32.pack_into(buffer, position + CRC_POSITION, checksum(checked))


def _seal_statistics(buffer: bytearray | memoryview, position: int) -> None:
    """Update the checksum of a batch's statistics, because it covers the changed header."""
    header = read_header(buffer, position)
    found = section_of(buffer, position, header) if header.is_columnar else None
    if found is not None:
        start, section = found
        buffer[start : start + len(section)] = sealed_section(buffer, position, header, section)
