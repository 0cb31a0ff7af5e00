"""Look at an Arrow IPC message before Arrow does, for what Arrow leaves to its caller.

Arrow verifies that a message is a well-formed flatbuffer, but allocates whatever size a compressed buffer declares,
and takes the compression from the message whatever the batch header says. So the few fields that decide about memory
are read here, from the flatbuffer itself (Arrow's ``Message.fbs``; flatbuffers' "internals": a table begins with the
distance back to its vtable, which holds the position of each field within the table, 0 = absent).
"""

from __future__ import annotations

import struct
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
_CODECS: Final = {0: Compression.LZ4, 1: Compression.ZSTD}


class MessageSummary(NamedTuple):
    """What decides about memory: rows, compression, and the size of all buffers once decompressed."""

    row_count: int
    compression: Compression
    body_position: int
    decompressed_bytes: int


def inspect_message(message: pa.Buffer) -> MessageSummary:
    """Read the metadata of the encapsulated record batch that fills ``message``.

    Raises ``CorruptBatchError`` when it is not one, or when a buffer lies outside the message's body.
    """
    try:
        return _inspect(message)
    except (struct.error, IndexError) as error:
        raise CorruptBatchError(f"Arrow message with metadata that leads outside it: {error}") from error


def _inspect(message: pa.Buffer) -> MessageSummary:
    continuation, metadata_bytes = _PREFIX.unpack_from(message)
    body_position = _PREFIX.size + metadata_bytes
    if continuation != _CONTINUATION or metadata_bytes <= 0 or body_position > message.size or body_position % 8:
        raise CorruptBatchError("Arrow message does not begin with its prefix and metadata")
    metadata = memoryview(message)[_PREFIX.size : body_position].tobytes()
    root = _Table(metadata, _follow(metadata, 0))
    if root.byte(1) != _RECORD_BATCH:
        raise CorruptBatchError(f"Arrow message of type {root.byte(1)}, expected a record batch")
    body_bytes = root.long(3)
    if body_bytes != message.size - body_position:
        raise CorruptBatchError(f"Arrow message declares a body of {body_bytes} bytes in {message.size}")
    batch = _Table(metadata, root.reference(2))
    compression = Compression.NONE
    if compression_at := batch.field(3):
        number = _Table(metadata, _follow(metadata, compression_at)).byte(0)
        if number not in _CODECS:
            raise CorruptBatchError(f"Arrow message with unknown compression {number}")
        compression = _CODECS[number]
    decompressed_bytes = 0
    for offset, length in batch.pairs(2):
        if offset < 0 or length < 0 or offset + length > body_bytes:
            raise CorruptBatchError(f"Arrow buffer of {length} bytes at {offset} in a body of {body_bytes}")
        if compression is not Compression.NONE and length:
            decompressed_bytes += _decompressed_size(message, body_position + offset, length)
        else:
            decompressed_bytes += length
    return MessageSummary(batch.long(0), compression, body_position, decompressed_bytes)


def _decompressed_size(message: pa.Buffer, position: int, length: int) -> int:
    if length < _I64.size:
        raise CorruptBatchError(f"compressed Arrow buffer of {length} bytes has no room for its size")
    (declared,) = _I64.unpack_from(message, position)
    if declared < -1:
        raise CorruptBatchError(f"compressed Arrow buffer declares {declared} bytes")
    size: int = length - _I64.size if declared == -1 else declared  # -1: this buffer is stored as it is
    return size


def _follow(data: bytes, position: int) -> int:
    (distance,) = _U32.unpack_from(data, position)
    target: int = position + distance
    return target


class _Table:
    """A flatbuffer table: fields by number, absent ones with flatbuffers' default 0."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - _I32.unpack_from(data, position)[0]
        if self._vtable < 0:
            raise CorruptBatchError("Arrow message with a table outside it")
        (self._vtable_bytes,) = _U16.unpack_from(data, self._vtable)

    def field(self, number: int) -> int:
        """Position of a field, 0 when absent."""
        entry = 4 + 2 * number
        if entry + 2 > self._vtable_bytes:
            return 0
        (distance,) = _U16.unpack_from(self._data, self._vtable + entry)
        return self._position + distance if distance else 0

    def byte(self, number: int) -> int:
        """An 8-bit field."""
        at = self.field(number)
        return self._data[at] if at else 0

    def long(self, number: int) -> int:
        """A 64-bit field."""
        at = self.field(number)
        return int(_I64.unpack_from(self._data, at)[0]) if at else 0

    def reference(self, number: int) -> int:
        """Position of what a field refers to, which must be there."""
        at = self.field(number)
        if not at:
            raise CorruptBatchError(f"Arrow message without field {number}")
        return _follow(self._data, at)

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """A vector of structs of two 64-bit integers."""
        at = self.field(number)
        if not at:
            return []
        start = _follow(self._data, at)
        (count,) = _U32.unpack_from(self._data, start)
        end = start + 4 + count * _PAIR.size
        if end > len(self._data):
            raise CorruptBatchError(f"Arrow message with a list of {count} entries that leads outside it")
        return list(_PAIR.iter_unpack(memoryview(self._data)[start + 4 : end]))
