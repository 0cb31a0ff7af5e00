"""Column statistics of a columnar batch, with which readers skip batches.

The section lies between the columns header and the message (big-endian)::

    u32  CRC-32C of: batch length; attributes without the transactional bit; last offset delta, base and max timestamp;
         count; bytes 61 to 83; and everything after this field
    u16  number of entries; then for each
         u16  column: its place in the schema (opaque: 0 key, 1 value), 65535: __timestamp
         u8   flags: 1 has bounds, 2 only nulls, 4 the upper bound is the beginning of the largest value
         u8   kind of the bounds: 1 whole number, 2 float, 3 bytes
         u32  nulls, at most
         with bounds: u8 length and bytes of the lower one, u8 length and bytes of the upper one

Invariants:

- bounds hold for every value that is not null; they need not be values of the batch, so a batch keeps them after
  compaction has removed records from it;
- the section has its own checksum over all fields that a reader needs to skip the batch unread. The batch's own
  checksum covers the whole body, and its verification is most of the cost of reading;
- a reader never skips a batch without statistics, or with an invalid statistics section.

Booleans, integers, dates (days), times and intervals (in their unit) and decimals (unscaled) count as whole numbers.
Strings and bytes are cut to 64 bytes. A column of floats with a NaN has no bounds, because a NaN has no order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.records.columnar import (
    ALIGNMENT_BYTES,
    MESSAGE_POSITION,
    ColumnFlags,
    read_columns_header,
    write_columns_header,
)
from millrace.records.header import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ReadableBuffer,
    TimestampType,
    checksum,
    seal,
)

Number: TypeAlias = int | float
Value: TypeAlias = Number | bytes
"""A stored bound; the module's docstring describes its encoding."""

TIMESTAMP_ENTRY: Final = 0xFFFF
STATISTICS_ROWS_MIN: Final = 256
"""Batches of fewer rows have no statistics, because writing them costs more than they can save."""
STATISTICS_COLUMNS_MAX: Final = 32
"""Columns beyond this number have no statistics, as in Delta tables."""
_BYTES_MAX: Final = 64
_MEAN_BYTES_MAX: Final = 64
"""Columns with longer strings or bytes on average are payload, which queries do not compare."""
_SAMPLED: Final = 16
_DISTINCT_MAX: Final = 4
_ASCENTS_MIN: Final = 12

_CRC: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">H")
_ENTRY: Final = struct.Struct(">HBBI")
_COVERED: Final = struct.Struct(">ihiqqi")
_COLUMNS_FIELDS_BYTES: Final = 23
_DOUBLE: Final = struct.Struct(">d")

_HAS_BOUNDS, _ONLY_NULLS, _IS_PREFIX = 1, 2, 4
_WHOLE, _FLOAT, _BYTES = 1, 2, 3


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column of a batch.

    ``nulls_max`` is an upper bound of the number of nulls. ``only_nulls`` is true if all values are null. ``bounds``
    are the lower and upper bound of the values, or ``None`` if unknown. With ``is_prefix`` the upper bound is a prefix
    of the largest value. The prefix is at most as large as any value that begins with it.
    """

    nulls_max: int
    only_nulls: bool = False
    bounds: tuple[Value, Value] | None = None
    is_prefix: bool = False


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Statistics of a batch.

    Columns are keyed by their index in the schema. ``timestamps_ms`` is the least and greatest timestamp, if known.
    """

    schema_id: int
    columns: Mapping[int, ColumnStatistics]
    timestamps_ms: tuple[int, int] | None


# --- gathering -----------------------------------------------------------------------------------------------------


def gather_entries(columns: Sequence[pa.Array | None], timestamps_ms: pa.Array | None) -> bytes:
    """Encode the statistics of columns in their order (None: not in the batch) and of record times.

    The result is empty for a batch with few rows.
    """
    rows = max((len(column) for column in columns if column is not None), default=0)
    if rows < STATISTICS_ROWS_MIN:
        return b""
    found = [
        (number, column_statistics(column))
        for number, column in enumerate(columns[:STATISTICS_COLUMNS_MAX])
        if column is not None
    ]
    if timestamps_ms is not None:
        found.append((TIMESTAMP_ENTRY, column_statistics(timestamps_ms)))
    return _COUNT.pack(len(found)) + b"".join(_write_entry(number, column) for number, column in found)


def column_statistics(column: pa.Array) -> ColumnStatistics:
    """Compute the statistics of one column; bounds are exact except for long strings.

    Strings and bytes take longest. They have bounds only if a sample shows that bounds would exclude values, because
    the values ascend or only few values are distinct.
    """
    nulls = column.null_count
    if nulls == len(column):
        return ColumnStatistics(nulls, only_nulls=True)
    if not _holds_bytes(column):
        return ColumnStatistics(nulls, bounds=_number_bounds(column))
    if not _is_worth_it(column):
        return ColumnStatistics(nulls)
    low, high = _byte_extremes(column)
    return ColumnStatistics(nulls, bounds=(low[:_BYTES_MAX], high[:_BYTES_MAX]), is_prefix=len(high) > _BYTES_MAX)


def _holds_bytes(column: pa.Array) -> bool:
    return bool(pat.is_string(column.type) or pat.is_binary(column.type))


def _byte_extremes(column: pa.Array) -> tuple[bytes, bytes]:
    extremes = pc.min_max(column.cast(pa.binary()))
    return extremes["min"].as_py(), extremes["max"].as_py()


def _is_worth_it(column: pa.Array) -> bool:
    if column.nbytes > _MEAN_BYTES_MAX * len(column):
        return False
    values = [value for value in column.take(_sample_places(len(column))).to_pylist() if value is not None]
    ascents = sum(before <= after for before, after in pairwise(values))
    return len(set(values)) <= _DISTINCT_MAX or ascents >= _ASCENTS_MIN


@lru_cache(maxsize=64)
def _sample_places(rows: int) -> pa.Int64Array:
    return pa.array([place * (rows - 1) // (_SAMPLED - 1) for place in range(_SAMPLED)], pa.int64())


def _number_bounds(column: pa.Array) -> tuple[Number, Number] | None:
    type_ = column.type
    if pat.is_boolean(type_):
        extremes = pc.min_max(column)
        return int(extremes["min"].as_py()), int(extremes["max"].as_py())
    if pat.is_decimal128(type_):
        extremes = pc.min_max(column)
        return _unscaled(extremes["min"]), _unscaled(extremes["max"])
    if pat.is_float32(type_) or pat.is_float64(type_):
        letter = "f"
    elif pat.is_signed_integer(type_) or pat.is_temporal(type_):
        letter = "i"
    else:
        return None
    if column.null_count:
        column = column.drop_null()
    numbers = np.frombuffer(column.buffers()[1], np.dtype(f"{letter}{type_.bit_width // 8}"))
    numbers = numbers[column.offset : column.offset + len(column)]
    low, high = numbers.min().item(), numbers.max().item()
    return None if low != low else (low, high)


def _unscaled(number: pa.Decimal128Scalar) -> int:
    low, high = struct.unpack("<Qq", pa.array([number]).buffers()[1].to_pybytes()[:16])
    value: int = (high << 64) | low
    return value


# --- writing and reading -------------------------------------------------------------------------------------------


def _write_entry(number: int, column: ColumnStatistics) -> bytes:
    if column.bounds is None:
        flags = _ONLY_NULLS if column.only_nulls else 0
        return _ENTRY.pack(number, flags, 0, column.nulls_max)
    kind, low, high = _write_bounds(column.bounds)
    flags = _HAS_BOUNDS | (_IS_PREFIX if column.is_prefix else 0)
    head = _ENTRY.pack(number, flags, kind, column.nulls_max)
    return b"".join((head, bytes([len(low)]), low, bytes([len(high)]), high))


def _write_bounds(bounds: tuple[Value, Value]) -> tuple[int, bytes, bytes]:
    low, high = bounds
    if isinstance(low, bytes) and isinstance(high, bytes):
        return _BYTES, low, high
    if isinstance(low, float) and isinstance(high, float):
        return _FLOAT, _DOUBLE.pack(low), _DOUBLE.pack(high)
    assert isinstance(low, int)
    assert isinstance(high, int)
    return _WHOLE, _write_whole(low), _write_whole(high)


def _write_whole(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def _read_value(kind: int, data: bytes) -> Value:
    if kind == _WHOLE:
        return int.from_bytes(data, "big", signed=True)
    if kind == _FLOAT:
        value: float = _DOUBLE.unpack(data)[0]
        return value
    if kind == _BYTES:
        return data
    raise ValueError(f"bounds of the unknown kind {kind}")


def seal_columnar(
    header: BatchHeader,
    flags: int,
    schema_id: int,
    message: Sequence[ReadableBuffer],
    entries: bytes = b"",
    *,
    with_checksum: bool = True,
) -> bytes:
    """Join a header, the pieces of a message and the entries of its statistics (empty: none) into a whole batch.

    ``with_checksum`` is that of ``seal``. The statistics have their own checksum in any case.
    """
    message_length = sum(len(piece) for piece in message)
    section_length = _CRC.size + len(entries) if entries else 0
    columns_header = write_columns_header(flags, schema_id, message_length, section_length)
    gap = bytes(-section_length % ALIGNMENT_BYTES)
    padding = bytes(-message_length % ALIGNMENT_BYTES)
    section = b""
    if entries:
        length = MESSAGE_POSITION + section_length + len(gap) + message_length + len(padding) - LOG_OVERHEAD_BYTES
        section = _section_crc(header, length, columns_header[:_COLUMNS_FIELDS_BYTES], entries) + entries
    return seal(header, columns_header, section, gap, *message, padding, with_checksum=with_checksum)


def _section_crc(header: BatchHeader, batch_length: int, columns_fields: bytes, entries: bytes) -> bytes:
    covered = _COVERED.pack(
        batch_length,
        header.attributes & ~TRANSACTIONAL_BIT,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.count,
    )
    return _CRC.pack(checksum(covered, columns_fields, entries))


def section_of(buffer: ReadableBuffer, position: int, header: BatchHeader) -> tuple[int, bytes] | None:
    """Return the position and bytes of the statistics of the columnar batch at ``position``; None if it has none."""
    layout = read_columns_header(buffer, position, header)
    if not layout.statistics_position:
        return None
    start = position + layout.statistics_position
    return start, bytes(memoryview(buffer)[start : start + layout.statistics_length])


def sealed_section(buffer: ReadableBuffer, position: int, header: BatchHeader, section: bytes) -> bytes:
    """Return the section with the checksum that it must have in the batch at ``position`` with header ``header``."""
    fields = bytes(memoryview(buffer)[position + HEADER_BYTES : position + HEADER_BYTES + _COLUMNS_FIELDS_BYTES])
    entries = section[_CRC.size :]
    return _section_crc(header, header.batch_length, fields, entries) + entries


def entries_of(buffer: ReadableBuffer, position: int, header: BatchHeader) -> bytes:
    """Return the encoded statistics of a batch, for a batch that is derived from it; empty if it has none.

    The caller has verified the batch's checksum.
    """
    found = section_of(buffer, position, header)
    return b"" if found is None else found[1][_CRC.size :]


def read_statistics(buffer: ReadableBuffer, position: int, header: BatchHeader) -> BatchStatistics | None:
    """Read the statistics of the columnar batch at ``position``; its own checksum need not be verified.

    Returns None if the batch has no statistics, or none that are valid. Raises ``CorruptBatchError`` for an
    impossible columns header.
    """
    found = section_of(buffer, position, header)
    if found is None:
        return None
    section = found[1]
    if sealed_section(buffer, position, header, section) != section:
        return None
    layout = read_columns_header(buffer, position, header)
    try:
        columns = dict(_read_entries(section))
    except (struct.error, ValueError, IndexError):
        return None
    times = columns.pop(TIMESTAMP_ENTRY, None)
    return BatchStatistics(layout.schema_id, columns, _timestamps(header, layout.flags, times))


def _read_entries(section: bytes) -> Iterator[tuple[int, ColumnStatistics]]:
    (count,) = _COUNT.unpack_from(section, _CRC.size)
    position = _CRC.size + _COUNT.size
    for _ in range(count):
        number, flags, kind, nulls = _ENTRY.unpack_from(section, position)
        position += _ENTRY.size
        bounds = None
        if flags & _HAS_BOUNDS:
            values = []
            for _ in range(2):
                end = position + 1 + section[position]
                if end > len(section):
                    raise ValueError("an entry that points outside the section")
                values.append(_read_value(kind, section[position + 1 : end]))
                position = end
            bounds = (values[0], values[1])
        yield number, ColumnStatistics(nulls, bool(flags & _ONLY_NULLS), bounds, bool(flags & _IS_PREFIX))


def _timestamps(header: BatchHeader, flags: int, times: ColumnStatistics | None) -> tuple[int, int] | None:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp, header.max_timestamp
    if flags & ColumnFlags.TIMESTAMPS:
        bounds: Any = None if times is None else times.bounds
        return None if bounds is None else (bounds[0], bounds[1])
    return None if header.has_delete_horizon else (header.base_timestamp, header.base_timestamp)


def covers(stored: ColumnStatistics, column: pa.Array) -> bool:
    """Return whether statistics hold for a column: all its values lie within them."""
    if column.null_count > stored.nulls_max or (stored.only_nulls and column.null_count != len(column)):
        return False
    if stored.bounds is None or column.null_count == len(column):
        return True
    low, high = stored.bounds
    if isinstance(low, bytes) or isinstance(high, bytes):
        return _covers_bytes(low, high, stored.is_prefix, column)
    actual = None if _holds_bytes(column) else _number_bounds(column)
    if actual is None:
        return False
    least, greatest = actual
    return type(least) is type(low) and low <= least and greatest <= high


def _covers_bytes(low: Value, high: Value, is_prefix: bool, column: pa.Array) -> bool:
    if not (isinstance(low, bytes) and isinstance(high, bytes) and _holds_bytes(column)):
        return False
    smallest, largest = _byte_extremes(column)
    return low <= smallest and (largest[: len(high)] if is_prefix else largest) <= high
