"""Runs of rows batches: vectorised reading of keys, and thinned copies.

Key, offset and presence of a value decide which records a batch loses. numpy reads these for a whole run of batches. A
record that stays is copied unchanged, except for its length and its timestamp. The timestamp is relative to that of the
batch's first record. So a thinned batch is byte for byte what Kafka writes, and values and headers are not parsed.
``RowRun`` raises ``ValueError`` for irregular batches, and the caller reads these record by record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import CorruptBatchError
from millrace.records import (
    BatchHeader,
    Compression,
    TimestampType,
    attributes_of,
    compress,
    seal,
)
from millrace.records.arrays import binary_array
from millrace.records.record_bounds import find_records
from millrace.records.varint_arrays import VarintTable, join_tables, read_varints

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool]

_NO_BYTES: Final = binary_array([b""])[0]


class Rewriting(NamedTuple):
    """A batch to rewrite, by its number.

    ``kept`` marks the records to keep. ``delete_horizon_ms`` is a new delete horizon, or None to leave it unchanged.
    """

    number: int
    kept: Mask
    delete_horizon_ms: int | None


class RowRun:
    """A run of rows batches without empty batches and control batches."""

    def __init__(self, bodies: Sequence[bytes | memoryview], headers: Sequence[BatchHeader]) -> None:
        """Read the batches with these decompressed bodies. Raises ``ValueError`` for irregular batches."""
        self._headers: Final = headers
        self._counts: Final = [header.count for header in headers]
        try:
            self._body, self._starts, at, self._ends = find_records(bodies, self._counts)
            data = np.frombuffer(self._body, np.uint8)
            self._time_deltas, self._after_times = read_varints(data, at + 1, 64)
            deltas, at = read_varints(data, self._after_times, 32)
            key_sizes, self._key_starts = read_varints(data, at, 32)
            self._key_ends = self._key_starts + np.maximum(key_sizes, 0)
            value_sizes, at = read_varints(data, self._key_ends, 32)
        except CorruptBatchError as error:
            raise ValueError(error.message) from error
        _require(bool(np.all(at + np.maximum(value_sizes, 0) <= self._ends)))
        self.offsets: Final[Longs] = deltas + np.repeat(
            np.array([header.base_offset for header in headers], np.int64), self._counts
        )
        self.has_value: Final[Mask] = value_sizes >= 0
        self._has_key: Final[Mask] = key_sizes >= 0

    def keys(self) -> pa.BinaryArray:
        """Return the keys of all records."""
        return _pieces(self._body, self._key_starts, self._key_ends, None if self._has_key.all() else self._has_key)

    def rewrite(self, wanted: Sequence[Rewriting]) -> list[bytes]:
        """Rewrite batches, all at once; each keeps at least one record."""
        firsts = np.concatenate([[0], np.cumsum(self._counts)])
        rows = np.concatenate([firsts[each.number] + np.flatnonzero(each.kept) for each in wanted])
        counts = [int(np.count_nonzero(each.kept)) for each in wanted]
        ends = np.cumsum(counts)
        headers, times = [], np.empty(len(rows), np.int64)
        for each, count, end in zip(wanted, counts, ends.tolist(), strict=True):
            batch_rows = slice(end - count, end)
            header, deltas = _new_header(self._headers[each.number], self._time_deltas[rows[batch_rows]], each, count)
            headers.append(header)
            times[batch_rows] = deltas
        records, sizes = self._join(rows, times)
        bounds = np.concatenate([[0], np.cumsum(sizes)])[np.concatenate([[0], ends])]
        return [
            _sealed(header, records.slice(int(start), int(end - start)))
            for header, start, end in zip(headers, bounds[:-1], bounds[1:], strict=True)
        ]

    def _join(self, rows: Longs, time_deltas: Longs) -> tuple[pa.Buffer, Longs]:
        """Return the records in ``rows`` with other timestamps, one after another, and the size of each."""
        tails = _pieces(self._body, self._after_times[rows], self._ends[rows], None)
        attributes, times = VarintTable(np.zeros(len(rows), np.int64)), VarintTable(time_deltas)
        lengths = 1 + times.sizes + self._ends[rows] - self._after_times[rows]
        length_table = VarintTable(lengths)
        prefixes, prefix_sizes = join_tables([length_table, attributes, times])
        bounds = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(prefix_sizes, out=bounds[1:])
        prefix = pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(bounds), pa.py_buffer(prefixes)])
        joined = pc.binary_join_element_wise(prefix, tails, _NO_BYTES)
        return joined.buffers()[2], length_table.sizes + lengths


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("not regular")


def _pieces(body: bytes, starts: Longs, ends: Longs, is_there: Mask | None) -> pa.BinaryArray:
    """Copy ascending, disjoint pieces of ``body``, at least one, into an array.

    The body becomes a binary array of the pieces and the gaps between them; every other value is copied.
    """
    count = len(starts)
    bounds = np.empty((count, 2), np.int32)
    bounds[:, 0], bounds[:, 1] = starts, ends
    alternating = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(body)])
    validity = None if is_there is None else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    numbers = np.arange(0, 2 * count, 2, dtype=np.int32)
    return alternating.take(pa.Array.from_buffers(pa.int32(), count, [validity, pa.py_buffer(numbers)]))


def _new_header(header: BatchHeader, deltas: Longs, wanted: Rewriting, count: int) -> tuple[BatchHeader, Longs]:
    """Return the header of a thinned batch, and its records' timestamps relative to its base timestamp."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        times = np.full(count, header.max_timestamp, np.int64)
    else:
        times = deltas + np.int64(header.base_timestamp)
    horizon_ms = wanted.delete_horizon_ms
    if horizon_ms is None and header.has_delete_horizon:
        horizon_ms = header.base_timestamp
    base_timestamp = int(times[0]) if horizon_ms is None else horizon_ms
    attributes = attributes_of(
        compression=header.compression,
        timestamp_type=header.timestamp_type,
        is_transactional=header.is_transactional,
        has_delete_horizon=horizon_ms is not None,
    )
    thinned = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=int(times.max()),
        count=count,
    )
    return thinned, times - np.int64(base_timestamp)


def _sealed(header: BatchHeader, records: pa.Buffer) -> bytes:
    if not header.compression:
        return seal(header, records)
    return seal(header, compress(records.to_pybytes(), Compression.of(header.compression)))
