"""Quick reading of the metadata of usual Arrow messages.

The metadata of the messages of opaque topics differ only in a few numbers: the number of rows, and the places of the
buffers. So the other bytes are compared with those of a message that this process has written. Arrow takes longer for
that than for the columns of a small batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from millrace.errors import CorruptBatchError
from millrace.records.arrays import binary_array, int64_array
from millrace.records.columnar import OPAQUE_SCHEMA_ID, ColumnFlags, opaque_body_schema, read_columns_header
from millrace.records.compression import Compression
from millrace.records.header import BatchHeader, ReadableBuffer, TimestampType
from millrace.records.ipc_message import number_positions

_ALIGNMENT_BYTES: Final = 8
_NUMBER_BYTES: Final = 8
_USUAL_FLAGS: Final = {0, int(ColumnFlags.KEY), int(ColumnFlags.TIMESTAMPS), ColumnFlags.TIMESTAMPS | ColumnFlags.KEY}


class Place(NamedTuple):
    """Place of a buffer in the body of a message."""

    start: int
    size_bytes: int


class UsualMessage(NamedTuple):
    """Timestamps, keys and values of a batch, each without nulls.

    ``columns`` has the places of each column's buffers, all within ``body``. These are validity (empty), offsets and
    values, and validity and values for timestamps.
    """

    flags: int
    has_statistics: bool
    body: memoryview
    columns: Sequence[Sequence[Place]]


class _Shape(NamedTuple):
    """Metadata of a message without its numbers."""

    layout: struct.Struct
    """The numbers, and the bytes between them."""
    numbers: Callable[[tuple[Any, ...]], tuple[int, ...]]
    """Takes the numbers, in the order of ``number_positions``."""
    rest: Callable[[tuple[Any, ...]], tuple[bytes, ...]]
    """Takes the bytes between them."""
    usual_rest: tuple[bytes, ...]
    buffers: tuple[int, ...]
    """The number of each column's buffers."""


@lru_cache(maxsize=len(_USUAL_FLAGS))
def _shape(flags: int) -> _Shape:
    """Return the shape of messages with the columns of ``flags``, from a sample."""
    schema = opaque_body_schema(flags)
    arrays = [int64_array([1]) if pa.types.is_int64(field.type) else binary_array([b"sample"]) for field in schema]
    message = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize()
    positions, end = number_positions(message)
    ascending, layout, begin = sorted(positions), "<", 0
    for position in ascending:
        layout += f"{position - begin}sq"
        begin = position + _NUMBER_BYTES
    layout += f"{end - begin}s"
    rest = itemgetter(*range(0, 2 * len(positions) + 1, 2))
    numbers = itemgetter(*(2 * ascending.index(position) + 1 for position in positions))
    buffers = tuple(len(array.buffers()) for array in arrays)
    return _Shape(struct.Struct(layout), numbers, rest, rest(struct.unpack_from(layout, message)), buffers)


def read_usual_message(buffer: ReadableBuffer, position: int, header: BatchHeader) -> UsualMessage | None:
    """Read the message of the batch at ``position``, if it is a usual columnar batch of an opaque topic.

    Such a batch has records without gaps, is uncompressed, and has the timestamps of its producer. Return None for any
    other batch, because Arrow decides about it. Its checksum has been verified. The content of the buffers is not
    checked.
    """
    if not _may_be_usual(header):
        return None
    try:
        columns = read_columns_header(buffer, position, header)
    except CorruptBatchError:
        return None
    if columns.schema_id != OPAQUE_SCHEMA_ID or columns.flags not in _USUAL_FLAGS:
        return None
    shape = _shape(columns.flags)
    start, metadata_bytes = position + columns.message_position, shape.layout.size
    if columns.message_length < metadata_bytes:
        return None
    fields = shape.layout.unpack_from(buffer, start)
    if shape.rest(fields) != shape.usual_rest:
        return None
    body = memoryview(buffer)[start + metadata_bytes : start + columns.message_length]
    body_bytes, rows, *numbers = shape.numbers(fields)
    if body_bytes != len(body) or rows != header.count:
        return None
    places = _places(numbers, shape.buffers, rows, len(body))
    return None if places is None else UsualMessage(columns.flags, columns.statistics_position > 0, body, places)


def _may_be_usual(header: BatchHeader) -> bool:
    return (
        header.is_columnar
        and 0 < header.count == header.last_offset_delta + 1
        and header.compression == Compression.NONE
        and header.timestamp_type is TimestampType.CREATE_TIME
        and not header.has_delete_horizon
    )


def _places(numbers: list[int], buffers: tuple[int, ...], rows: int, body_bytes: int) -> list[list[Place]] | None:
    """Return the places of each column's buffers, if they are within the body and there are no nulls."""
    if numbers[2 * sum(buffers) :] != [rows, 0] * len(buffers):
        return None
    columns, at = [], 0
    for count in buffers:
        column = [Place(numbers[at + 2 * each], numbers[at + 2 * each + 1]) for each in range(count)]
        if column[0].size_bytes:
            return None
        for start, size_bytes in column:
            if min(start, size_bytes) < 0 or start % _ALIGNMENT_BYTES or start + size_bytes > body_bytes:
                return None
        columns.append(column)
        at += 2 * count
    return columns
