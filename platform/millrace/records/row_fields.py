"""Positions of the fields of all records in rows batches.

A compiled loop goes from field to field (``compiled``). Until a process has it, numpy reads one field of all records
after the other, from the bounds of the records on (``record_bounds``). Both accept only what is sound, and give the
same positions.

Why numpy's checks suffice: within a record each field begins at the end of the previous one. Positions only grow,
because sizes are at least 0. The end of the last field must be the end of the record. If that holds, no field left its
record, so values that were read from positions beyond the body have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import CorruptBatchError
from millrace.records.columnar import HEADERS_TYPE
from millrace.records.compiled import begin_to_load_loops, loops_if_loaded
from millrace.records.record_bounds import find_records
from millrace.records.varint_arrays import Bools, Bytes, Longs, read_varints

INT_MAX: Final = 2**31 - 1
_HEADERS_A_RECORD_MAX: Final = 64
"""Limit of headers per record. Headers are read in rounds: the first of each record, then the second. Beyond the
limit too few records share a round.
"""
_RECORDS_WITHOUT_LOOP: Final = 2_000_000
"""Records that a process reads before it loads the loop. Numpy takes as long for them as the loading."""
_left = _RECORDS_WITHOUT_LOOP


class RowFields(NamedTuple):
    """Fields of all records. The positions count in ``data``."""

    data: Bytes
    timestamp_deltas: Longs
    offset_deltas: Longs
    key: Field
    value: Field
    header_counts: Longs
    entries: Entries | None
    """The headers, if there are any."""


class Field(NamedTuple):
    """Positions of a field's bytes, for each record."""

    starts: Longs
    ends: Longs
    is_null: Bools

    def copied_from(self, data: Bytes) -> pa.BinaryArray:
        """Return the field as a column; the positions have been checked."""
        count = len(self.starts)
        null_count = np.count_nonzero(self.is_null)
        if null_count == count:
            return pa.nulls(count, pa.binary())
        is_null = self.is_null if null_count else None
        loops = loops_if_loaded()
        if loops is None:
            return self._taken_from(data, is_null)
        offsets = np.empty(count + 1, np.int32)
        values = np.empty(int(self.ends.sum() - self.starts.sum()), np.uint8)
        loops.copy_values(data, self.starts, self.ends, offsets, values)
        return pa.Array.from_buffers(
            pa.binary(), count, [_validity(is_null), pa.py_buffer(offsets), pa.py_buffer(values)]
        )

    def _taken_from(self, data: Bytes, is_null: Bools | None) -> pa.BinaryArray:
        """Let Arrow copy the field.

        The data is viewed as a binary array of twice as many values. The values alternate between a record's field and
        the bytes up to the next record's field. Arrow copies every second value.
        """
        count = len(self.starts)
        bounds = np.empty((count, 2), np.int32)
        bounds[:, 0] = self.starts
        bounds[:, 1] = self.ends
        pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
        return pieces.take(arrow_array(np.arange(0, 2 * count, 2, dtype=np.int32), pa.int32(), is_null))


class Entries(NamedTuple):
    """Headers of all records, in order."""

    keys: Field
    values: Field

    def copied_from(self, data: Bytes, counts: Longs) -> pa.ListArray:
        """Return the headers as a column of ``HEADERS_TYPE``; raises ``CorruptBatchError`` for a key that is not
        UTF-8.
        """
        try:
            keys = self.keys.copied_from(data).cast(pa.string())
        except pa.ArrowInvalid as error:
            raise CorruptBatchError("a header's key is not UTF-8") from error
        struct = pa.StructArray.from_arrays([keys, self.values.copied_from(data)], fields=list(HEADERS_TYPE.value_type))
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.Array.from_buffers(HEADERS_TYPE, len(counts), [None, pa.py_buffer(offsets)], children=[struct])


def locate_fields(bodies: Sequence[bytes], counts: Sequence[int]) -> RowFields:
    """Find the fields of batches with these decompressed bodies and numbers of records.

    Raises ``CorruptBatchError`` for invalid batches, for bodies from 2 GiB on, and for records of more than 64 headers.
    """
    global _left
    if loops_if_loaded() is None:
        _left -= sum(counts)
        if _left < 0:
            begin_to_load_loops()
        return _locate_by_numpy(bodies, counts)
    require(sum(map(len, bodies)) <= INT_MAX)
    ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    body = bodies[0] if len(bodies) == 1 else b"".join(bodies)
    return locate_fields_in_place(np.frombuffer(body, np.uint8), starts, ends, counts)


def locate_fields_in_place(data: Bytes, starts: Longs, ends: Longs, counts: Sequence[int]) -> RowFields:
    """Do the same for bodies between bounds of ``data``, which needs the loop to be loaded."""
    loops = loops_if_loaded()
    assert loops is not None, "the loops are not loaded"
    require(all(0 < count <= size for count, size in zip(counts, ends - starts, strict=True)))
    total = sum(counts)
    fields = np.empty((loops.FIELDS, total), np.int64)
    nulls = np.empty((2, total), np.bool)
    require(loops.locate_fields(data, starts, ends, np.array(counts, np.int64), fields, nulls, _HEADERS_A_RECORD_MAX))
    timestamps, offsets, key, key_end, value, value_end, header_counts, headers, record_ends = fields
    key_field, value_field = Field(key, key_end, nulls[0]), Field(value, value_end, nulls[1])
    entries = None
    if header_counts.any():
        entries, at = _read_entries(data, headers, header_counts)
        require(np.array_equal(at, record_ends))
    return RowFields(data, timestamps, offsets, key_field, value_field, header_counts, entries)


def _locate_by_numpy(bodies: Sequence[bytes], counts: Sequence[int]) -> RowFields:
    body, _, at, ends = find_records(bodies, counts)
    data = np.frombuffer(body, np.uint8)
    timestamp_deltas, at = read_varints(data, at + 1, 64)
    offset_deltas, at = read_varints(data, at, 32)
    key, at = _read_field(data, at)
    value, at = _read_field(data, at)
    header_counts, at = read_varints(data, at, 32)
    entries = None
    if header_counts.any():
        entries, at = _read_entries(data, at, header_counts)
    require(np.array_equal(at, ends))
    return RowFields(data, timestamp_deltas, offset_deltas, key, value, header_counts, entries)


def _read_field(data: Bytes, at: Longs) -> tuple[Field, Longs]:
    sizes, at = read_varints(data, at, 32)
    ends = at + np.maximum(sizes, 0)
    return Field(at, ends, sizes < 0), ends


def _read_entries(data: Bytes, at: Longs, counts: Longs) -> tuple[Entries, Longs]:
    """Read ``counts`` headers that begin at ``at``; return them and the positions after them."""
    require(counts.min() >= 0 and counts.max() <= _HEADERS_A_RECORD_MAX)
    total = int(counts.sum())
    keys, values = (Field(np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, bool)) for _ in "kv")
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
    require(not keys.is_null.any())
    return Entries(keys, values), at


def require(holds: bool | np.bool) -> None:
    """Raise ``CorruptBatchError`` if a rule of the reader does not hold."""
    if not holds:
        raise CorruptBatchError("not a regular batch")


def arrow_array(values: npt.NDArray[np.int64 | np.int32], type_: pa.DataType, is_null: Bools | None = None) -> pa.Array:
    """Return an array of numbers without a copy."""
    return pa.Array.from_buffers(type_, len(values), [_validity(is_null), pa.py_buffer(values)])


def _validity(is_null: Bools | None) -> pa.Buffer | None:
    return None if is_null is None else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
