"""Variable-length integers of many records at once, in numpy arrays.

The reader gathers the first byte of every integer, then the second byte of the longer ones, and so on. Its tolerance
is that of ``varint``: bits beyond the type's width are dropped, and a sixth (eleventh) byte is an error. The reader
does not check the end of the data. A position beyond the end gives some integer and a next position that is also
beyond the end. Therefore a caller that checks the end of each record's last field has checked all of them.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from millrace.errors import CorruptBatchError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Bools: TypeAlias = npt.NDArray[np.bool]
Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]

BITS_A_BYTE: Final = 7
GOES_ON: Final = 0x80
_RUNS_MAX: Final = 32
"""Tables with more runs of equal sizes are joined by a mask over all bytes, which takes four times as long."""


def _zigzag(raw: npt.NDArray[np.uint64]) -> Longs:
    return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)


_ONE_BYTE_VALUES: Final = _zigzag(np.arange(GOES_ON, dtype=np.uint64))
_TWO_BYTE_VALUES: Final = _zigzag(np.arange(GOES_ON << BITS_A_BYTE, dtype=np.uint64))


def read_varints(data: Bytes, positions: Longs, bits: int) -> tuple[Longs, Longs]:
    """Read an integer of ``bits`` (32 or 64) at each position; return them and the positions after them.

    Raises ``CorruptBatchError`` if an integer is too long.
    """
    first = data.take(positions, mode="clip")
    following = positions + 1
    if first.max(initial=0) < GOES_ON:
        return _ONE_BYTE_VALUES.take(first), following
    is_long = first >= GOES_ON
    last = data.take(positions + is_long, mode="clip")
    if last.max() < GOES_ON:  # the usual sizes: one byte, or two
        short = (last * is_long).astype(np.uint16) << BITS_A_BYTE | first & 0x7F
        return _TWO_BYTE_VALUES.take(short), following + is_long
    raw = (first & 0x7F).astype(np.uint64)
    rows: npt.NDArray[np.intp] = np.flatnonzero(is_long)
    shift = 0
    while rows.size:
        shift += BITS_A_BYTE
        if shift >= bits:
            raise CorruptBatchError("an integer of the records is too long")
        byte = data.take(following[rows], mode="clip")
        raw[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        following[rows] += 1
        rows = rows[byte >= GOES_ON]
    if bits < 64:
        raw &= np.uint64((1 << bits) - 1)
    return _zigzag(raw), following


class VarintTable:
    """Varint encodings of many integers.

    ``bytes`` has a left-aligned row for each integer, and ``sizes`` has the number of valid bytes of each row.
    """

    def __init__(self, values: npt.NDArray[Any]) -> None:
        wide = values.astype(np.int64, copy=False)
        raw = ((wide << 1) ^ (wide >> 63)).view(np.uint64)
        largest = int(raw.max(initial=0))
        self.bytes: Bytes
        self.sizes: Longs
        if largest < GOES_ON:
            self.bytes, self.sizes = raw.astype(np.uint8)[:, None], np.ones(len(raw), np.int64)
        elif largest < GOES_ON << BITS_A_BYTE:  # the usual sizes: one byte, or two
            short = raw.astype(np.uint16)
            is_long = short >= GOES_ON
            self.bytes = np.empty((len(raw), 2), np.uint8)
            self.bytes[:, 0] = short | is_long.astype(np.uint16) << BITS_A_BYTE
            self.bytes[:, 1] = short >> BITS_A_BYTE
            self.sizes = is_long + np.int64(1)
        else:
            self.bytes, self.sizes = _encoded(raw)


def _encoded(raw: npt.NDArray[np.uint64]) -> tuple[Bytes, Longs]:
    columns = []
    sizes = np.ones(len(raw), np.int64)
    while True:
        low = (raw & np.uint64(0x7F)).astype(np.uint8)
        raw = raw >> np.uint64(BITS_A_BYTE)
        goes_on = raw > 0
        if not goes_on.any():
            columns.append(low)
            return np.column_stack(columns), sizes
        columns.append(low | goes_on.astype(np.uint8) << np.uint8(BITS_A_BYTE))
        sizes += goes_on


def join_tables(tables: list[VarintTable]) -> tuple[Bytes, Longs]:
    """Write the integers of several tables in sequence, row by row; return all bytes and the size of each row."""
    sizes: Longs = sum((table.sizes for table in tables[1:]), start=tables[0].sizes)
    starts = _runs_of_equal_sizes(tables)
    if len(starts) <= _RUNS_MAX:
        ends = [*starts[1:], len(sizes)]
        return np.concatenate([_join_run(tables, *run) for run in zip(starts, ends, strict=True)]), sizes
    used = [np.arange(table.bytes.shape[1]) < table.sizes[:, None] for table in tables]
    joined: Bytes = np.concatenate([table.bytes for table in tables], axis=1)
    return joined[np.concatenate(used, axis=1)], sizes


def _runs_of_equal_sizes(tables: list[VarintTable]) -> list[int]:
    """Return the first row of each run in which the integers of a table have the same size."""
    changes = np.zeros(max(len(tables[0].sizes) - 1, 0), bool)
    for table in tables:
        if table.bytes.shape[1] > 1:
            changes |= table.sizes[1:] != table.sizes[:-1]
    return [0, *(np.flatnonzero(changes) + 1).tolist()]


def _join_run(tables: list[VarintTable], start: int, end: int) -> Bytes:
    columns = [
        table.bytes[start:end, number]
        for table in tables
        for number in range(int(table.sizes[start]) if end > start else 0)
    ]
    joined: Bytes = np.empty((end - start, len(columns)), np.uint8)
    for number, column in enumerate(columns):
        joined[:, number] = column
    return joined.reshape(-1)
