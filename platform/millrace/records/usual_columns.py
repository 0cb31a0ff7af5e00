"""Quick check of small columnar batches of opaque topics.

Decoding with Arrow takes most of the time in which a batch of a few records is checked. But the metadata of such
batches differ only in a few numbers: the number of rows, and the places of the buffers. So the other bytes are compared
with those of a message that this process has written, and the numbers are checked here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from millrace.errors import CorruptBatchError
from millrace.records.arrays import binary_array
from millrace.records.columnar import OPAQUE_SCHEMA_ID, ColumnFlags, opaque_body_schema, read_columns_header
from millrace.records.compression import Compression
from millrace.records.header import NO_TIMESTAMP, BatchHeader, ReadableBuffer, TimestampType
from millrace.records.ipc_message import number_positions
from millrace.records.statistics import STATISTICS_ROWS_MIN

_ROWS_MAX: Final = STATISTICS_ROWS_MIN - 1
"""With more rows, a batch has statistics, and Arrow checks the offsets faster."""
_ALIGNMENT_BYTES: Final = 8
_NUMBER_BYTES: Final = 8
_OFFSET_BYTES: Final = 4
_NUMBERS_OF_BUFFERS: Final = 6
"""Offset and length of each of a column's three buffers."""
_USUAL_FLAGS: Final = (0, int(ColumnFlags.KEY))


class _Shape(NamedTuple):
    """Metadata of a message without its numbers."""

    layout: struct.Struct
    """The numbers, and the bytes between them."""
    numbers: Callable[[tuple[Any, ...]], tuple[int, ...]]
    """Takes the numbers, in the order of ``number_positions``."""
    rest: Callable[[tuple[Any, ...]], tuple[bytes, ...]]
    """Takes the bytes between them."""
    usual_rest: tuple[bytes, ...]


@lru_cache(maxsize=len(_USUAL_FLAGS))
def _shape(flags: int) -> _Shape:
    """Return the shape of messages with the columns of ``flags``, from a sample."""
    schema = opaque_body_schema(flags)
    sample = pa.RecordBatch.from_arrays([binary_array([b"sample"]) for _ in schema], schema=schema)
    message = sample.serialize()
    positions, end = number_positions(message)
    ascending, layout, begin = sorted(positions), "<", 0
    for position in ascending:
        layout += f"{position - begin}sq"
        begin = position + _NUMBER_BYTES
    layout += f"{end - begin}s"
    rest = itemgetter(*range(0, 2 * len(positions) + 1, 2))
    numbers = itemgetter(*(2 * ascending.index(position) + 1 for position in positions))
    return _Shape(struct.Struct(layout), numbers, rest, rest(struct.unpack_from(layout, message)))


def usual_column_times(buffer: ReadableBuffer, position: int, header: BatchHeader) -> tuple[int, int] | None:
    """Check a columnar batch as ``validate_batch`` does, for a fraction of its cost, if it is like most small batches.

    Return the smallest and the largest timestamp of a valid batch of an opaque topic. It has no nulls, no headers and
    one timestamp. For any other batch return None, because ``validate_batch`` decides. The caller has verified the
    checksum.
    """
    if not _may_be_usual(header):
        return None
    try:
        columns = read_columns_header(buffer, position, header)
    except CorruptBatchError:
        return None
    if columns.schema_id != OPAQUE_SCHEMA_ID or columns.flags not in _USUAL_FLAGS or columns.statistics_position:
        return None
    shape = _shape(columns.flags)
    start, metadata_bytes = position + columns.message_position, shape.layout.size
    if columns.message_length < metadata_bytes:
        return None
    fields = shape.layout.unpack_from(buffer, start)
    if shape.rest(fields) != shape.usual_rest:
        return None
    body = memoryview(buffer)[start + metadata_bytes : start + columns.message_length]
    body_bytes, rows, *places = shape.numbers(fields)
    is_valid = body_bytes == len(body) and rows == header.count and _are_valid(places, body, rows)
    return (header.max_timestamp, header.max_timestamp) if is_valid else None


def _may_be_usual(header: BatchHeader) -> bool:
    return (
        header.is_columnar
        and 0 < header.count <= _ROWS_MAX
        and header.last_offset_delta == header.count - 1
        and header.compression == Compression.NONE
        and header.timestamp_type is TimestampType.CREATE_TIME
        and not header.has_delete_horizon
        and NO_TIMESTAMP <= header.base_timestamp == header.max_timestamp
    )


def _are_valid(places: list[int], body: memoryview, rows: int) -> bool:
    """Return whether columns of bytes are valid and have no nulls.

    ``places`` has three buffers of each column (validity, offsets and values), then the rows and nulls of each column.
    """
    columns = len(places) // (_NUMBERS_OF_BUFFERS + 2)
    if places[columns * _NUMBERS_OF_BUFFERS :] != [rows, 0] * columns:
        return False
    offsets_bytes = _OFFSET_BYTES * (rows + 1)
    for first in range(0, columns * _NUMBERS_OF_BUFFERS, _NUMBERS_OF_BUFFERS):
        validity_at, validity_bytes, start, length, values_at, values_bytes = places[
            first : first + _NUMBERS_OF_BUFFERS
        ]
        if validity_bytes or min(validity_at, start, values_at, values_bytes) < 0 or length < offsets_bytes:
            return False
        if (start | values_at | validity_at) % _ALIGNMENT_BYTES or max(start + length, validity_at) > len(body):
            return False
        offsets = body[start : start + offsets_bytes].cast("i").tolist()
        if offsets[0] or offsets != sorted(offsets):
            return False
        if offsets[-1] > values_bytes or values_at + values_bytes > len(body):
            return False
    return True
