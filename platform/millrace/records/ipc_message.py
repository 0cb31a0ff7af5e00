"""Checks of an Arrow IPC message that Arrow leaves to its caller.

Arrow verifies that a message is a well-formed flatbuffer. But it allocates whatever size a compressed buffer
declares, and it takes the compression from the message instead of the batch header. Therefore this module reads the
fields that determine memory use from the flatbuffer itself (Arrow's ``Message.fbs``). Flatbuffers' "internals"
describe the format: a table begins with the distance back to its vtable. The vtable holds the position of each field
within the table, or 0 for an absent field.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from millrace.errors import CorruptBatchError
from millrace.records.compression import Compression

_I64: Final = struct.Struct("<q")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_U16: Final = struct.Struct("<H")
_PAIR: Final = struct.Struct("<qq")
_PREFIX: Final = struct.Struct("<Ii")

_CONTINUATION: Final = 0xFFFF_FFFF
_RECORD_BATCH: Final = 3
_DISTANCES: Final = tuple(struct.Struct(f"<{count}H") for count in range(5))
_ABSENT: Final = (0, 0, 0, 0)
_CODECS: Final = {0: Compression.LZ4, 1: Compression.ZSTD}


class MessageSummary(NamedTuple):
    """Fields of a message that determine memory use; ``decompressed_bytes`` counts all buffers."""

    row_count: int
    compression: Compression
    body_position: int
    decompressed_bytes: int


def inspect_message(message: pa.Buffer) -> MessageSummary:
    """Read the metadata of the encapsulated record batch that fills ``message``.

    Raises ``CorruptBatchError`` if it is not a record batch, or if a buffer lies outside the message's body.
    """
    try:
        return _inspect(message)
    except (struct.error, IndexError) as error:
        raise CorruptBatchError(f"Arrow message with metadata that points outside it: {error}") from error


def _inspect(message: pa.Buffer) -> MessageSummary:
    continuation, metadata_bytes = _PREFIX.unpack_from(message)
    body_position = _PREFIX.size + metadata_bytes
    if continuation != _CONTINUATION or metadata_bytes <= 0 or body_position > message.size or body_position % 8:
        raise CorruptBatchError("Arrow message does not begin with its prefix and metadata")
    metadata = message.slice(_PREFIX.size, metadata_bytes).to_pybytes()
    _, type_at, header_at, length_at = _fields(metadata, _follow(metadata, 0))
    kind = metadata[type_at] if type_at else 0
    if kind != _RECORD_BATCH:
        raise CorruptBatchError(f"Arrow message of type {kind}, expected a record batch")
    body_bytes = _long(metadata, length_at)
    if body_bytes != message.size - body_position:
        raise CorruptBatchError(f"Arrow message declares a body of {body_bytes} bytes, but has {message.size}")
    if not header_at:
        raise CorruptBatchError("Arrow message without a record batch")
    rows_at, _, buffers_at, compression_at = _fields(metadata, _follow(metadata, header_at))
    compression = _compression(metadata, compression_at) if compression_at else Compression.NONE
    decompressed_bytes = 0
    is_plain = compression is Compression.NONE
    for offset, length in _pairs(metadata, buffers_at):
        if offset < 0 or length < 0 or offset + length > body_bytes:
            raise CorruptBatchError(f"Arrow buffer of {length} bytes at {offset} in a body of {body_bytes}")
        is_whole = is_plain or not length
        decompressed_bytes += length if is_whole else _decompressed_size(message, body_position + offset, length)
    return MessageSummary(_long(metadata, rows_at), compression, body_position, decompressed_bytes)


def number_positions(message: pa.Buffer) -> tuple[list[int], int]:
    """Return where a valid, uncompressed message has its 64-bit numbers, and where its metadata ends.

    The numbers are the size of the body and the number of rows. The offset and length of each buffer follow, then the
    rows and nulls of each column.
    """
    end = _PREFIX.size + _PREFIX.unpack_from(message)[1]
    metadata = message.slice(_PREFIX.size, end - _PREFIX.size).to_pybytes()
    _, _, header_at, length_at = _fields(metadata, _follow(metadata, 0))
    rows_at, columns_at, buffers_at, _ = _fields(metadata, _follow(metadata, header_at))
    positions = [length_at, rows_at]
    for vector in (_follow(metadata, buffers_at), _follow(metadata, columns_at)):
        (count,) = _U32.unpack_from(metadata, vector)
        positions += [vector + 4 + _I64.size * number for number in range(2 * count)]
    return [_PREFIX.size + position for position in positions], end


def _decompressed_size(message: pa.Buffer, position: int, length: int) -> int:
    if length < _I64.size:
        raise CorruptBatchError(f"compressed Arrow buffer of {length} bytes has no room for its size")
    (declared,) = _I64.unpack_from(message, position)
    if declared < -1:
        raise CorruptBatchError(f"compressed Arrow buffer declares {declared} bytes")
    size: int = length - _I64.size if declared == -1 else declared  # -1: this buffer is not compressed
    return size


def _follow(data: bytes, position: int) -> int:
    (distance,) = _U32.unpack_from(data, position)
    target: int = position + distance
    return target


def _fields(table: bytes, position: int) -> tuple[int, int, int, int]:
    """Return the positions of the first four fields of the flatbuffer table at ``position``; 0 for an absent field."""
    (distance_back,) = _I32.unpack_from(table, position)
    vtable = position - distance_back
    if vtable < 0:
        raise CorruptBatchError("Arrow message with a table outside it")
    (vtable_bytes,) = _U16.unpack_from(table, vtable)
    count = min(max(vtable_bytes // _U16.size - 2, 0), 4)
    first, second, third, fourth = _DISTANCES[count].unpack_from(table, vtable + 4) + _ABSENT[count:]
    return (
        position + first if first else 0,
        position + second if second else 0,
        position + third if third else 0,
        position + fourth if fourth else 0,
    )


def _long(data: bytes, position: int) -> int:
    """Read a 64-bit field, with flatbuffers' default 0."""
    return int(_I64.unpack_from(data, position)[0]) if position else 0


def _compression(metadata: bytes, position: int) -> Compression:
    codec_at = _fields(metadata, _follow(metadata, position))[0]
    number = metadata[codec_at] if codec_at else 0
    if number not in _CODECS:
        raise CorruptBatchError(f"Arrow message with unknown compression {number}")
    return _CODECS[number]


def _pairs(data: bytes, position: int) -> Iterator[tuple[int, int]]:
    """Read a vector of structs of two 64-bit integers."""
    if not position:
        return iter(())
    start = _follow(data, position)
    (count,) = _U32.unpack_from(data, start)
    end = start + 4 + count * _PAIR.size
    if end > len(data):
        raise CorruptBatchError(f"Arrow message with a list of {count} entries that points outside it")
    return _PAIR.iter_unpack(data[start + 4 : end])
