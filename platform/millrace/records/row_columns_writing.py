"""Fast writer of rows batches from Arrow columns.

A compiled loop (``loops``) writes all records. The result equals, byte for byte, the result of ``build_rows_batch`` for
the same records.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import InvalidRecordError, MessageTooLargeError
from millrace.records.arrays import int32_array
from millrace.records.compiled import load_loops
from millrace.records.compression import Compression, compress
from millrace.records.header import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TimestampType,
    seal,
)
from millrace.records.rows import rows_header
from millrace.records.varint_arrays import Bytes, Ints, Longs

_INT_MAX: Final = 2**31 - 1
_ZERO: Final = int32_array([0])[0]


def build_rows_batch_of_columns(
    columns: pa.RecordBatch,
    *,
    timestamps_ms: int | pa.Int64Array = NO_TIMESTAMP,
    headers: pa.ListArray | None = None,
    offsets: pa.Int64Array | None = None,
    last_offset: int | None = None,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    delete_horizon_ms: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Build a whole batch of v2 records from binary columns ``value`` and, optionally, ``key``.

    ``timestamps_ms`` is one for all rows or one per row; ``headers`` is a list of ``HEADERS_TYPE`` per row.
    ``offsets`` are absolute and ascend; without them the rows are numbered from ``base_offset``. The other arguments
    and the errors are those of ``build_rows_batch``.
    """
    count = columns.num_rows
    if not count and last_offset is None:
        raise InvalidRecordError("a batch needs at least one record")
    deltas = np.arange(count) if offsets is None else _values(offsets, np.int64, count) - np.int64(base_offset)
    last_delta = int(deltas[-1]) if last_offset is None else last_offset - base_offset
    if count and (deltas[0] < 0 or deltas[-1] > last_delta or np.any(deltas[1:] <= deltas[:-1])):
        raise InvalidRecordError(f"the offsets of a batch {base_offset}..{base_offset + last_delta} do not ascend")
    if not 0 <= last_delta <= _INT_MAX:
        raise InvalidRecordError(f"a batch cannot have offsets from {base_offset} to {base_offset + last_delta}")
    timestamps = _timestamps(timestamps_ms, count)
    base_timestamp = int(timestamps[0]) if delete_horizon_ms is None else delete_horizon_ms
    header = rows_header(
        compression=compression,
        first_offset=base_offset,
        last_offset=base_offset + last_delta,
        count=count,
        timestamp_range=(int(timestamps.min()), int(timestamps.max())),
        base_timestamp=base_timestamp,
        has_delete_horizon=delete_horizon_ms is not None,
        timestamp_type=timestamp_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
        is_control=False,
        leader_epoch=leader_epoch,
    )
    if not count:
        return seal(header)
    key = columns.column("key") if "key" in columns.schema.names else None
    body = _body(
        timestamps - np.int64(base_timestamp),
        deltas,
        _column(key, count),
        _column(columns.column("value"), count),
        _headers(headers, count),
    )
    if compression is Compression.NONE:
        return seal(header, body)
    return seal(header, compress(bytes(body), compression, level=level))


def _timestamps(timestamps_ms: int | pa.Int64Array, count: int) -> Longs:
    """Return a timestamp for each record, and at least one, because the header of an empty batch needs it."""
    if isinstance(timestamps_ms, int):
        return np.full(max(count, 1), timestamps_ms, np.int64)
    return _values(timestamps_ms, np.int64, count) if count else np.array([NO_TIMESTAMP])


class _Column(NamedTuple):
    """Values of an Arrow column, for the loop. The size of a null is -1."""

    starts: Ints
    sizes: Ints
    bytes: Bytes

    @property
    def size_bytes(self) -> int:
        return int(self.sizes.clip(min=0).sum(dtype=np.int64))


class _Headers(NamedTuple):
    """Headers of all records. ``bounds`` has where the headers of each record begin and end."""

    bounds: Ints
    keys: _Column
    values: _Column


_NOTHING: Final = _Column(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.uint8))
INTEGERS_BYTES: Final = 31
"""Most bytes of a record beside its key, its value and its headers: an attribute, a long, and four integers."""
_HEADER_INTEGERS_BYTES: Final = 10


def _body(timestamp_deltas: Longs, offset_deltas: Longs, key: _Column, value: _Column, headers: _Headers) -> memoryview:
    """Return all records. Raises ``MessageTooLargeError``."""
    size_max = len(timestamp_deltas) * INTEGERS_BYTES + len(headers.keys.sizes) * _HEADER_INTEGERS_BYTES
    size_max += sum(column.size_bytes for column in (key, value, headers.keys, headers.values))
    if size_max > _INT_MAX:
        raise MessageTooLargeError(
            f"a batch of up to {size_max} bytes is too large, because {_INT_MAX} is the maximum: send fewer records at "
            "once"
        )
    body = np.empty(size_max, np.uint8)
    size = load_loops().write_rows(
        body, timestamp_deltas, offset_deltas, *key, *value, headers.bounds, *headers.keys, *headers.values
    )
    return body[:size].data


def _column(array: pa.Array | None, count: int) -> _Column:
    """Return a binary column; nulls without one."""
    if array is None or array.null_count == count:
        return _Column(np.zeros(count, np.int32), np.full(count, -1, np.int32), _NOTHING.bytes)
    _, bounds_buffer, data = array.buffers()
    bounds = np.frombuffer(bounds_buffer, np.int32)[array.offset : array.offset + count + 1]
    sizes = np.diff(bounds)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return _Column(bounds[:-1], sizes, _NOTHING.bytes if data is None else np.frombuffer(data, np.uint8))


def _headers(headers: pa.ListArray | None, count: int) -> _Headers:
    bounds = np.zeros(count + 1, np.int32)
    if headers is None:
        return _Headers(bounds, _NOTHING, _NOTHING)
    if len(headers) != count:
        raise InvalidRecordError(f"headers of {len(headers)} records for {count}")
    counts = _values(pc.fill_null(pc.list_value_length(headers), _ZERO), np.int32, count)
    np.cumsum(counts, out=bounds[1:])
    keys, values = headers.flatten().flatten()
    if keys.null_count:
        raise InvalidRecordError("a header without a key")
    return _Headers(bounds, _column(keys.cast(pa.binary()), len(keys)), _column(values, len(values)))


def _values(array: pa.Array, type_: type[Any], count: int) -> npt.NDArray[Any]:
    if len(array) != count:
        raise InvalidRecordError(f"{len(array)} offsets or timestamps for {count} rows")
    if array.null_count:
        raise InvalidRecordError("a null among the offsets or timestamps")
    if not count:
        return np.empty(0, type_)
    return np.frombuffer(array.buffers()[1], type_)[array.offset : array.offset + count]
