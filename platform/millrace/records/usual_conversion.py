"""Quick conversion of columnar batches of opaque topics to rows.

A compiled loop reads the columns where they are. Most batches are like this: uncompressed, without nulls, headers and
gaps. Arrow and ``split_rows`` convert all others. Both give the same bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.records.columnar import ColumnFlags
from millrace.records.compiled import load_loops
from millrace.records.header import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    ReadableBuffer,
    attributes_of,
    seal,
)
from millrace.records.row_columns_writing import INTEGERS_BYTES
from millrace.records.usual_message import Place, UsualMessage, read_usual_message
from millrace.records.varint_arrays import Bytes, Ints, Longs

_ROW_BYTES: Final = 12
"""A row's bytes beside its key and value, at least as many as ``split_rows`` counts."""
_NOTHING: Final = (np.empty(0, np.int32), np.empty(0, np.uint8))


def usual_rows_of(batch: ReadableBuffer, header: BatchHeader, *, bytes_max: int) -> bytes | None:
    """Convert a columnar batch to one batch of rows, if it is like most. Its checksum has been verified.

    Return None for any other batch, and if the rows may exceed ``bytes_max``.
    """
    if header.is_control or not _has_consistent_producer(header):
        return None
    message = read_usual_message(batch, 0, header)
    if message is None:
        return None
    timestamps = _timestamps(message, header)
    keys = _bytes_column(message, -2, header.count) if message.flags & ColumnFlags.KEY else _NOTHING
    values = _bytes_column(message, -1, header.count)
    if timestamps is None or keys is None or values is None:
        return None
    oldest, newest = int(timestamps.min()), int(timestamps.max())
    if oldest < NO_TIMESTAMP or len(keys[1]) + len(values[1]) + (header.count + 1) * _ROW_BYTES > bytes_max:
        return None
    body = np.empty(header.count * INTEGERS_BYTES + len(keys[1]) + len(values[1]), np.uint8)
    size_bytes = load_loops().write_plain_rows(body, timestamps, *keys, *values)
    if size_bytes < 0:
        return None
    fields = header._replace(
        attributes=attributes_of(is_transactional=header.is_transactional),
        base_timestamp=int(timestamps[0]),
        max_timestamp=newest,
        base_sequence=max(header.base_sequence, NO_SEQUENCE),
    )
    return seal(fields, body[:size_bytes].data)


def _has_consistent_producer(header: BatchHeader) -> bool:
    """Return whether the fields of the producer agree, as ``rows_header`` demands."""
    if header.producer_id == NO_PRODUCER_ID:
        return not header.is_transactional
    return header.producer_epoch != NO_PRODUCER_EPOCH and header.base_sequence >= 0


def _timestamps(message: UsualMessage, header: BatchHeader) -> Longs | None:
    """Return a timestamp for each row, or one for all rows."""
    if not message.flags & ColumnFlags.TIMESTAMPS:
        return np.array([header.base_timestamp])
    return _numbers(message, message.columns[0][1], np.int64, header.count)


def _bytes_column(message: UsualMessage, number: int, rows: int) -> tuple[Ints, Bytes] | None:
    """Return where the values begin and end, and their bytes."""
    _, offsets, values = message.columns[number]
    bounds = _numbers(message, offsets, np.int32, rows + 1)
    if bounds is None:
        return None
    return bounds, np.frombuffer(message.body[values.start : values.start + values.size_bytes], np.uint8)


def _numbers(message: UsualMessage, place: Place, type_: type[Any], count: int) -> npt.NDArray[Any] | None:
    """Return the numbers of a buffer, if it has as many, at an address where the loop can read them."""
    if place.size_bytes < count * np.dtype(type_).itemsize:
        return None
    numbers = np.frombuffer(message.body, type_, count, place.start)
    return numbers if numbers.flags.aligned else None
