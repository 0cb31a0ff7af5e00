"""Layout and reserved columns of the columnar body.

After the 61-byte batch header (big-endian; positions from the batch start)::

    position  type  field
          61  u8    body version              1
          62  u8    columns                   bit 0 __offset, 1 __timestamp, 2 __headers, 3 __tombstone,
                                              4 key (schema id 0 only)
          63  u8    reserved                  0
          64  i32   schema id                 0 = opaque
          68  i32   message position          of the Arrow IPC message; a multiple of 64, 128 without statistics
          72  i32   message length            metadata and body
          76  i32   statistics position       0 = none; see ``millrace.records.statistics``
          80  i32   statistics length
          84        reserved                  zero up to 128

The message is one encapsulated Arrow record batch. The schema message, which precedes a record batch in an Arrow
stream, is absent because the schema id names the schema. The reserved columns that the flags name come first, in the
order of their bits. For schema id 0 ``key`` (if its bit is set) and ``value`` follow, both binary. For any other
schema id the columns of the schema follow. Zeros pad the whole batch to a multiple of 64 bytes. Therefore a reader
can decode a run of columnar batches in a mapped file in place.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from millrace.errors import CorruptBatchError, SchemaError
from millrace.records.header import HEADER_BYTES, BatchHeader, ReadableBuffer

BODY_VERSION: Final = 1
ALIGNMENT_BYTES: Final = 64
MESSAGE_POSITION: Final = 128
OPAQUE_SCHEMA_ID: Final = 0

RESERVED_PREFIX: Final = "__"
OFFSET_COLUMN: Final = "__offset"
TIMESTAMP_COLUMN: Final = "__timestamp"
HEADERS_COLUMN: Final = "__headers"
TOMBSTONE_COLUMN: Final = "__tombstone"

HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
OPAQUE_SCHEMA: Final = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])
"""Columns of a topic without a schema: the key and value of a Kafka record."""

_COLUMNS_HEADER: Final = struct.Struct(">BBBiiiii")
_RESERVED_TAIL: Final = bytes(MESSAGE_POSITION - HEADER_BYTES - _COLUMNS_HEADER.size)


class ColumnFlags(IntEnum):
    """Bits for the columns of a body beside those of its schema. Combinations are plain integers."""

    OFFSETS = 1
    TIMESTAMPS = 2
    HEADERS = 4
    TOMBSTONES = 8
    KEY = 16


_RESERVED_FIELDS: Final = {
    ColumnFlags.OFFSETS: pa.field(OFFSET_COLUMN, pa.int32(), nullable=False),
    ColumnFlags.TIMESTAMPS: pa.field(TIMESTAMP_COLUMN, pa.int64(), nullable=False),
    ColumnFlags.HEADERS: pa.field(HEADERS_COLUMN, HEADERS_TYPE),
    ColumnFlags.TOMBSTONES: pa.field(TOMBSTONE_COLUMN, pa.bool_(), nullable=False),
}
_UNKNOWN_FLAGS: Final = 0xE0


class ColumnsHeader(NamedTuple):
    """The 23 bytes after the batch header, as read."""

    version: int
    flags: int
    reserved: int
    schema_id: int
    message_position: int
    message_length: int
    statistics_position: int = 0
    statistics_length: int = 0

    @property
    def reserved_column_count(self) -> int:
        """Number of reserved columns before those of the schema."""
        return (self.flags & ~ColumnFlags.KEY).bit_count()


def read_columns_header(buffer: ReadableBuffer, position: int, header: BatchHeader) -> ColumnsHeader:
    """Read and check the columns header of the columnar batch at ``position``.

    Raises ``CorruptBatchError`` if a field breaks its rule or a section is not within the batch.
    """
    size = header.size_bytes
    if size < MESSAGE_POSITION:
        raise _corrupt(header, f"{size} bytes, but a columnar batch has at least {MESSAGE_POSITION}")
    columns = ColumnsHeader._make(_COLUMNS_HEADER.unpack_from(buffer, position + HEADER_BYTES))
    if columns.version != BODY_VERSION:
        raise _corrupt(header, f"body version {columns.version} is not supported: this reader reads {BODY_VERSION}")
    if columns.flags & _UNKNOWN_FLAGS or columns.reserved:
        raise _corrupt(header, f"unknown column flags {columns.flags:#x}, {columns.reserved:#x}")
    if columns.schema_id < OPAQUE_SCHEMA_ID:
        raise _corrupt(header, f"schema id {columns.schema_id}")
    if columns.schema_id != OPAQUE_SCHEMA_ID and columns.flags & ColumnFlags.KEY:
        raise _corrupt(header, "the key flag is for opaque batches, but this batch has a schema")
    if size % ALIGNMENT_BYTES or columns.message_position % ALIGNMENT_BYTES:
        raise _corrupt(header, f"{size} bytes with a message at {columns.message_position}: not multiples of 64")
    if not _within(columns.message_position, columns.message_length, size):
        raise _corrupt(header, f"message of {columns.message_length} bytes at {columns.message_position}")
    if columns.statistics_position and not _within(columns.statistics_position, columns.statistics_length, size):
        raise _corrupt(header, f"statistics of {columns.statistics_length} bytes at {columns.statistics_position}")
    return columns


def _within(position: int, length: int, size: int) -> bool:
    return position >= MESSAGE_POSITION and length >= 0 and position + length <= size


def _corrupt(header: BatchHeader, problem: str) -> CorruptBatchError:
    return CorruptBatchError(f"columnar batch with base offset {header.base_offset}: {problem}")


def write_columns_header(flags: int, schema_id: int, message_length: int, statistics_length: int = 0) -> bytes:
    """Write the bytes between the batch header and the statistics, or the message if there are no statistics.

    The message begins at the next multiple of 64 after the statistics.
    """
    message_position = MESSAGE_POSITION + -(-statistics_length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    statistics_position = MESSAGE_POSITION if statistics_length else 0
    fields = _COLUMNS_HEADER.pack(
        BODY_VERSION, flags, 0, schema_id, message_position, message_length, statistics_position, statistics_length
    )
    return fields + _RESERVED_TAIL


@lru_cache(maxsize=256)
def typed_body_schema(schema: pa.Schema, flags: int) -> pa.Schema:
    """Return the schema of a typed body's message: the reserved columns, then those of the topic's schema.

    Raises ``SchemaError`` for a dictionary-encoded column, because its values would need a message of their own.
    """
    for field in schema:
        if _has_dictionary(field.type):
            raise SchemaError(f"column {field.name}: {field.type} cannot be stored, cast it to its value type")
    return pa.schema(_reserved_fields(flags) + list(schema))


@lru_cache(maxsize=32)
def opaque_body_schema(flags: int) -> pa.Schema:
    """Return the schema of an opaque body's message: the reserved columns, the key if present, then the value."""
    columns = list(OPAQUE_SCHEMA) if flags & ColumnFlags.KEY else [OPAQUE_SCHEMA.field("value")]
    return pa.schema(_reserved_fields(flags) + columns)


def _has_dictionary(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        return True
    return any(_has_dictionary(type_.field(index).type) for index in range(type_.num_fields))


def _reserved_fields(flags: int) -> list[pa.Field]:
    return [field for flag, field in _RESERVED_FIELDS.items() if flags & flag]
