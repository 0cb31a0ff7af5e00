"""Fast reader of rows batches into Arrow columns.

The reader of ``rows`` is the reference, and its result for a batch is correct by definition. The fast reader here
finds the records (``record_bounds``) and reads the other fields of all records with numpy. Arrow then copies the keys
and values out of the body. No Python object is created per record. The fast reader returns a result only if every
rule of the reference holds; otherwise the reference reads the batch. Therefore damaged batches give the same error
and message from both readers, and only valid batches are fast.

Why the checks suffice: within a record each field begins at the end of the previous one. Positions only grow, because
sizes are at least 0. The end of the last field must be the end of the record. If that holds, no field left its
record, so values that were read from positions beyond the body have no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import CorruptBatchError
from millrace.records.arrays import binary_array, headers_array, int32_array, int64_array, repeated_int64
from millrace.records.columnar import HEADERS_TYPE, OPAQUE_SCHEMA
from millrace.records.compression import DECOMPRESSED_BYTES_MAX
from millrace.records.header import BatchHeader, ReadableBuffer
from millrace.records.record_bounds import find_records
from millrace.records.rows import Headers, append_time, body_of, decoded_headers, read_raw, wrapped
from millrace.records.varint_arrays import Bytes, Longs, read_varints

_ROWS_MIN: Final = 24
"""Below this many records the calls into numpy take longer than reading record by record."""

_HEADERS_A_RECORD_MAX: Final = 64
"""Limit of headers per record. Headers are read in rounds: the first of each record, then the second. Beyond the
limit too few records share a round.
"""

_INT_MAX: Final = 2**31 - 1


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
    bodies: list[bytes] = []
    for position, header in run:
        body, damage = body_of(buffer, position, header, max_bytes)
        max_bytes -= len(body)
        if damage is not None:
            raise damage
        bodies.append(body)
    return read_regular(bodies, [header for _, header in run], names)


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
    fields = _locate(bodies, headers)
    source = pa.py_buffer(fields.body)
    return RowColumns(
        columns={name: (fields.key if name == "key" else fields.value).copied_from(source) for name in names},
        offset_deltas=_offset_deltas(fields.offset_deltas, headers),
        timestamps_ms=_timestamps(fields.timestamp_deltas, headers),
        headers=None if fields.entries is None else fields.entries.copied_from(source, fields.header_counts),
    )


class _Fields(NamedTuple):
    """Fields of all records of valid batches.

    All positions count in ``body``, the joined bodies.
    """

    body: bytes
    timestamp_deltas: Longs
    offset_deltas: Longs
    key: _Field
    value: _Field
    header_counts: Longs
    entries: _Entries | None


def _locate(bodies: Sequence[bytes | memoryview], headers: Sequence[BatchHeader]) -> _Fields:
    """Find the fields of batches with these bodies. Raises ``CorruptBatchError``."""
    body, _, at, ends = find_records(bodies, [header.count for header in headers])
    data = np.frombuffer(body, np.uint8)
    timestamp_deltas, at = read_varints(data, at + 1, 64)
    offset_deltas, at = read_varints(data, at, 32)
    key, at = _read_field(data, at)
    value, at = _read_field(data, at)
    header_counts, at = read_varints(data, at, 32)
    entries = None
    if header_counts.any():
        entries, at = _read_entries(data, at, header_counts)
    _require(np.array_equal(at, ends))
    return _Fields(body, timestamp_deltas, offset_deltas, key, value, header_counts, entries)


def _timestamps(deltas: Longs, headers: Sequence[BatchHeader]) -> pa.Int64Array:
    counts = [header.count for header in headers]
    stamped = [append_time(header) for header in headers]
    times = deltas + np.repeat(np.array([header.base_timestamp for header in headers], np.int64), counts)
    if any(time is not None for time in stamped):
        imposed = np.repeat(np.array([time or 0 for time in stamped], np.int64), counts)
        times = np.where(np.repeat([time is not None for time in stamped], counts), imposed, times)
    return _arrow(times, pa.int64())


def _offset_deltas(deltas: Longs, headers: Sequence[BatchHeader]) -> pa.Int32Array | None:
    """Return the offsets, less the first batch's base offset. Return None if they ascend by one from it."""
    bases = np.array([header.base_offset - headers[0].base_offset for header in headers], np.int64)
    found = deltas + np.repeat(bases, [header.count for header in headers])
    if np.array_equal(found, np.arange(len(found))):
        return None
    _require(found.max() <= _INT_MAX)
    return _arrow(found.astype(np.int32), pa.int32())


def _require(holds: bool | np.bool) -> None:
    if not holds:
        raise CorruptBatchError("not a regular batch")


class _Field(NamedTuple):
    """Positions of a field's bytes in the body, for each record."""

    starts: Longs
    ends: Longs
    is_null: npt.NDArray[np.bool]

    def copied_from(self, body: pa.Buffer) -> pa.BinaryArray:
        """Return the field as a column; the positions have been checked.

        The body is viewed as a binary array of twice as many values. The values alternate between a record's field
        and the bytes up to the next record's field. Arrow copies every second value.
        """
        count = len(self.starts)
        null_count = np.count_nonzero(self.is_null)
        if null_count == count:
            return pa.nulls(count, pa.binary())
        bounds = np.empty((count, 2), np.int32)
        bounds[:, 0] = self.starts
        bounds[:, 1] = self.ends
        pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), body])
        return pieces.take(
            _arrow(np.arange(0, 2 * count, 2, dtype=np.int32), pa.int32(), self.is_null if null_count else None)
        )


def _read_field(data: Bytes, at: Longs) -> tuple[_Field, Longs]:
    sizes, at = read_varints(data, at, 32)
    ends = at + np.maximum(sizes, 0)
    return _Field(at, ends, sizes < 0), ends


class _Entries(NamedTuple):
    """Headers of all records, in order."""

    keys: _Field
    values: _Field

    def copied_from(self, body: pa.Buffer, counts: Longs) -> pa.ListArray:
        """Return the headers as a column of ``HEADERS_TYPE``; raises ``CorruptBatchError`` for a key that is not
        UTF-8.
        """
        try:
            keys = self.keys.copied_from(body).cast(pa.string())
        except pa.ArrowInvalid as error:
            raise CorruptBatchError("a header's key is not UTF-8") from error
        struct = pa.StructArray.from_arrays([keys, self.values.copied_from(body)], fields=list(HEADERS_TYPE.value_type))
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.Array.from_buffers(HEADERS_TYPE, len(counts), [None, pa.py_buffer(offsets)], children=[struct])


def _read_entries(data: Bytes, at: Longs, counts: Longs) -> tuple[_Entries, Longs]:
    """Read ``counts`` headers that begin at ``at``; return them and the positions after them."""
    _require(counts.min() >= 0 and counts.max() <= _HEADERS_A_RECORD_MAX)
    total = int(counts.sum())
    keys, values = (_Field(np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, bool)) for _ in "kv")
    entry = np.cumsum(counts) - counts
    at = at.copy()
    rows = np.flatnonzero(counts)
    for number in range(int(counts.max())):
        rows = rows[counts[rows] > number]
        following = at[rows]
        for gathered in (keys, values):
            field, following = _read_field(data, following)
            for target, part in zip(gathered, field, strict=True):
                target[entry[rows] + number] = part
        at[rows] = following
    _require(not keys.is_null.any())
    return _Entries(keys, values), at


def _arrow(
    values: npt.NDArray[np.int64 | np.int32], type_: pa.DataType, is_null: npt.NDArray[np.bool] | None = None
) -> pa.Array:
    validity = None if is_null is None else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(type_, len(values), [validity, pa.py_buffer(values)])
