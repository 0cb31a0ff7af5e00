"""What a broker does with a batch without looking into it: find it, check it, give it its place.

Offsets and leader epoch lie outside the checksum, so assigning them touches 12 bytes; the append time lies inside.
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
    """Walk the batches from ``position`` on, yielding position and header of each; bodies are not looked at.

    Ends silently before an incomplete last batch, as Kafka's readers do: a fetch may be cut anywhere. Raises
    ``CorruptBatchError`` at a batch whose magic or length cannot be.
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
        # Too short for a header: incomplete, unless it says that it is complete.
        _, length = _OFFSET_AND_LENGTH.unpack_from(buffer, position)
        if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            raise CorruptBatchError(f"batch at position {position}: length {length} is below the header's 49")


def crc_matches(buffer: ReadableBuffer, position: int, header: BatchHeader) -> bool:
    """Whether the batch at ``position``, wholly in ``buffer``, has the checksum that its header says."""
    whole = as_arrow_buffer(buffer)
    return checksum(whole.slice(position + CHECKED_FROM, header.size_bytes - CHECKED_FROM)) == header.crc


def verify_crc(buffer: ReadableBuffer, position: int, header: BatchHeader) -> None:
    """Check a batch's checksum; raises ``CorruptBatchError`` when it is wrong or the batch is not wholly there."""
    if position + header.size_bytes > len(buffer):
        raise CorruptBatchError(
            f"batch with base offset {header.base_offset} at position {position}: "
            f"{len(buffer) - position} of its {header.size_bytes} bytes are there"
        )
    if not crc_matches(buffer, position, header):
        raise CorruptBatchError(
            f"batch with base offset {header.base_offset} at position {position} fails its checksum "
            f"({header.size_bytes} bytes)"
        )


def assign_offsets(buffer: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int) -> None:
    """Give the batch at ``position`` its base offset and leader epoch, in place; the checksum stays right."""
    _I64.pack_into(buffer, position, base_offset)
    _I32.pack_into(buffer, position + _LEADER_EPOCH_POSITION, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Make the batch at ``position`` one whose records all have the broker's time, in place, with a new checksum.

    As Kafka does, only the timestamp type and the maximum timestamp change; readers ignore the records' own times.
    """
    header = read_header(buffer, position)
    verify_size = len(buffer) - position - header.size_bytes
    if verify_size < 0:
        raise CorruptBatchError(f"batch at position {position} is incomplete: {-verify_size} bytes are missing")
    attributes = header.attributes | TIMESTAMP_TYPE_BIT
    _I16.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes)
    _I64.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, now_ms)
    _seal_statistics(buffer, position)
    checked = pa.py_buffer(buffer).slice(position + CHECKED_FROM, header.size_bytes - CHECKED_FROM)
    _U32.pack_into(buffer, position + CRC_POSITION, checksum(checked))


def _seal_statistics(buffer: bytearray | memoryview, position: int) -> None:
    """Bring the checksum of a batch's statistics up to its header, which that covers."""
    header = read_header(buffer, position)
    found = section_of(buffer, position, header) if header.is_columnar else None
    if found is not None:
        start, section = found
        buffer[start : start + len(section)] = sealed_section(buffer, position, header, section)
