"""Fast reader of rows batches into Arrow columns.

The reader of ``rows`` is the reference, and its result for a batch is correct by definition. The fast reader here
finds the fields of all records (``row_fields``), and copies keys and values out of the body. No Python object is
created per record. The fast reader returns a result only if every rule of the reference holds; otherwise the reference
reads the batch. Therefore damaged batches give the same error and message from both readers, and only valid batches are
fast.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.errors import CorruptBatchError
from millrace.records.arrays import binary_array, headers_array, int32_array, int64_array, repeated_int64
from millrace.records.columnar import OPAQUE_SCHEMA
from millrace.records.compiled import loops_if_loaded
from millrace.records.compression import DECOMPRESSED_BYTES_MAX, BodyTooLargeError
from millrace.records.header import HEADER_BYTES, BatchHeader, ReadableBuffer
from millrace.records.row_fields import (
    INT_MAX,
    RowFields,
    arrow_array,
    locate_fields,
    locate_fields_in_place,
    require,
)
from millrace.records.rows import Headers, append_time, body_of, decoded_headers, read_raw, wrapped
from millrace.records.varint_arrays import Longs

_ROWS_MIN: Final = 24
"""Below this many records the calls into numpy take longer than reading record by record."""


class RowColumns(NamedTuple):
    """Rows batches as Arrow columns.

    ``columns`` are the requested ones of key and value. ``offset_deltas`` count from the first batch's base offset.
    They are ``None`` if the records are numbered from 0 without gaps; ``headers`` is ``None`` if no record has any.
    """

    columns: dict[str, pa.BinaryArray]
    offset_deltas: pa.Int32Array | None
    timestamps_ms: pa.Int64Array
    headers: pa.ListArray | None


def rows_to_columns(
    buffer: ReadableBuffer,
    position: int,
    header: BatchHeader,
    names: Collection[str] = tuple(OPAQUE_SCHEMA.names),
    *,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> RowColumns:
    """Read all records of the rows batch at ``position`` into columns; raises the errors of ``read_rows``.

    ``names`` selects from ``key`` and ``value``.
    """
    body, damage = body_of(buffer, position, header, max_bytes)
    if damage is None and header.count >= _ROWS_MIN:
        try:
            return read_regular([body], [header], names)
        except CorruptBatchError:
            pass  # the reference decides whether the batch is corrupt, and where
    return read_one_by_one(body, damage, header, names)


def run_to_columns(
    buffer: ReadableBuffer, run: Sequence[tuple[int, BatchHeader]], names: Collection[str], *, max_bytes: int
) -> RowColumns:
    """Read several rows batches, (position, header) each, as one; for small batches that is several times faster.

    Their decompressed size together is limited to ``max_bytes``. Raises ``CorruptBatchError`` or
    ``UnsupportedCompressionError`` if they cannot be read together; the caller then reads them one by one.
    """
    headers = [header for _, header in run]
    if loops_if_loaded() is not None and not any(header.compression for header in headers):
        if sum(header.size_bytes - HEADER_BYTES for header in headers) > max_bytes:
            raise BodyTooLargeError(f"the bodies of {len(run)} batches are larger than {max_bytes} bytes together")
        starts = np.array([position for position, _ in run], np.int64)
        ends = starts + np.array([header.size_bytes for header in headers], np.int64)
        data = np.frombuffer(memoryview(buffer), np.uint8)
        counts = [header.count for header in headers]
        return _columns(locate_fields_in_place(data, starts + HEADER_BYTES, ends, counts), headers, names)
    bodies: list[bytes] = []
    for position, header in run:
        body, damage = body_of(buffer, position, header, max_bytes)
        max_bytes -= len(body)
        if damage is not None:
            raise damage
        bodies.append(body)
    return read_regular(bodies, headers, names)


def read_one_by_one(
    body: bytes, damage: CorruptBatchError | None, header: BatchHeader, names: Collection[str]
) -> RowColumns:
    """Read the columns through the reference reader; raises ``CorruptBatchError``."""
    fields: dict[str, list[bytes | None]] = {name: [] for name in names}
    timestamp_deltas: list[int] = []
    offset_deltas: list[int] = []
    headers: dict[int, Headers] = {}
    for row, raw in enumerate(read_raw(body, damage, header)):
        for name, values in fields.items():
            values.append(raw.key if name == "key" else raw.value)
        timestamp_deltas.append(raw.timestamp_delta)
        offset_deltas.append(raw.offset_delta)
        if raw.headers:
            headers[row] = decoded_headers(raw.headers)
    stamped = append_time(header)
    count = len(offset_deltas)
    if stamped is None:
        timestamps_ms = int64_array([wrapped(header.base_timestamp + delta) for delta in timestamp_deltas])
    else:
        timestamps_ms = repeated_int64(stamped, count)
    return RowColumns(
        columns={name: binary_array(values) for name, values in fields.items()},
        offset_deltas=None if offset_deltas == list(range(count)) else int32_array(offset_deltas),
        timestamps_ms=timestamps_ms,
        headers=headers_array([headers.get(row, ()) for row in range(count)]) if headers else None,
    )


def read_regular(bodies: Sequence[bytes], headers: Sequence[BatchHeader], names: Collection[str]) -> RowColumns:
    """Read the columns of valid batches. ``bodies`` are decompressed.

    Raises ``CorruptBatchError`` for invalid batches, and for valid batches with an unusual feature:

    - more than 64 headers in a record;
    - header keys that are not UTF-8;
    - bodies from 2 GiB on;
    - offsets more than 2^31 apart.
    """
    return _columns(locate_fields(bodies, [header.count for header in headers]), headers, names)


def _columns(fields: RowFields, headers: Sequence[BatchHeader], names: Collection[str]) -> RowColumns:
    return RowColumns(
        columns={name: (fields.key if name == "key" else fields.value).copied_from(fields.data) for name in names},
        offset_deltas=_offset_deltas(fields.offset_deltas, headers),
        timestamps_ms=_timestamps(fields.timestamp_deltas, headers),
        headers=None if fields.entries is None else fields.entries.copied_from(fields.data, fields.header_counts),
    )


def _timestamps(deltas: Longs, headers: Sequence[BatchHeader]) -> pa.Int64Array:
    counts = [header.count for header in headers]
    stamped = [append_time(header) for header in headers]
    times = deltas + np.repeat(np.array([header.base_timestamp for header in headers], np.int64), counts)
    if any(time is not None for time in stamped):
        imposed = np.repeat(np.array([time or 0 for time in stamped], np.int64), counts)
        times = np.where(np.repeat([time is not None for time in stamped], counts), imposed, times)
    return arrow_array(times, pa.int64())


def _offset_deltas(deltas: Longs, headers: Sequence[BatchHeader]) -> pa.Int32Array | None:
    """Return the offsets, less the first batch's base offset. Return None if they ascend by one from it."""
    bases = np.array([header.base_offset - headers[0].base_offset for header in headers], np.int64)
    found = deltas + np.repeat(bases, [header.count for header in headers])
    if np.array_equal(found, np.arange(len(found))):
        return None
    require(found.max() <= INT_MAX)
    return arrow_array(found.astype(np.int32), pa.int32())
