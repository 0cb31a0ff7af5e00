"""Conversion of decoded numbers to column types."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.payloads.wire import Cursor, Longs

_DECIMAL_BYTES: Final = 16


def from_words(
    values: npt.NDArray[Any], data_type: pa.DataType, cursor: Cursor, path: str, *, ticks: int = 1
) -> pa.Array:
    """Convert integers to a column: plain, or days or microseconds with ``ticks`` per unit.

    A value out of range is a fault.
    """
    width = data_type.bit_width
    if ticks != 1:
        wrong = np.abs(values) > (2**63 - 1) // ticks
        if wrong.any():
            cursor.faults.add(cursor.rows[wrong], f"{path}: a time is out of range")
            values = np.where(wrong, 0, values)
        values = values * ticks
    if width < 64:
        narrow = values.astype(f"i{width // 8}")
        wrong = narrow != values
        if wrong.any():
            cursor.faults.add(cursor.rows[wrong], f"{path}: a number is out of range")
        values = narrow
    if pat.is_time(data_type):
        wrong = (values < 0) | (values >= 86_400 * 10**9)
        if wrong.any():
            cursor.faults.add(cursor.rows[wrong], f"{path}: a time of day is out of range")
            values = np.where(wrong, 0, values)
    array = pa.array(values)
    return array if array.type == data_type else array.view(data_type)


def decimals(cursor: Cursor, starts: Longs, lengths: Longs, data_type: pa.DataType, path: str) -> pa.Array:
    """Convert unscaled big-endian two's complement numbers to decimals. Too many digits are a fault."""
    wrong = (lengths > _DECIMAL_BYTES) | (lengths < 1)
    if wrong.any():
        cursor.faults.add(cursor.rows[wrong], f"{path}: a decimal has {_DECIMAL_BYTES} bytes at most, and one at least")
        lengths = np.where(wrong, 1, lengths)
    # Take the sixteen bytes up to the number's end, reversed; the bytes before the number become its sign.
    blocks = cursor.wire.blocks[starts + lengths - _DECIMAL_BYTES].view(np.uint8).reshape(-1, _DECIMAL_BYTES)[:, ::-1]
    negative = cursor.wire.bytes[starts] >= 0x80
    sign = np.where(negative, 0xFF, 0).astype(np.uint8)
    place = np.arange(_DECIMAL_BYTES)
    little = np.where(place < lengths[:, None], blocks, sign[:, None])
    array = pa.Array.from_buffers(
        pa.decimal128(38, data_type.scale), len(starts), [None, pa.py_buffer(np.ascontiguousarray(little))]
    )
    return fitted(array, data_type, cursor, path)


def fitted(array: pa.Array, data_type: pa.DataType, cursor: Cursor, path: str) -> pa.Array:
    """Cast decimals to the column's type; too many digits are a fault."""
    try:
        return array.cast(data_type)
    except pa.ArrowInvalid:
        limit = 10**data_type.precision
        wrong = np.array([abs(int(value.scaleb(data_type.scale))) >= limit for value in array.to_pylist()], bool)
        cursor.faults.add(cursor.rows[wrong], f"{path}: a number has more digits than {data_type}")
        return pa.array(
            [None if bad else value for bad, value in zip(wrong, array.to_pylist(), strict=True)], data_type
        )


def uuid_text(array: pa.Array) -> pa.Array:
    """Format sixteen bytes as a UUID."""
    from uuid import UUID

    return pa.array([str(UUID(bytes=value)) if len(value) == 16 else None for value in array.to_pylist()], pa.string())


def big_endian(array: pa.Array, size: int | None) -> pa.BinaryArray:
    """Write the unscaled numbers of decimals as big-endian two's complement.

    They have ``size`` bytes, and null if that is not enough; without a size each has as few bytes as possible.
    """
    raw = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, _DECIMAL_BYTES)
    big = raw[array.offset : array.offset + len(array), ::-1]
    # A leading byte is redundant if it only repeats the sign, which the next byte's highest bit has as well.
    fill = np.where(big[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    is_redundant = (big[:, :-1] == fill) & ((big[:, 1:] >= 0x80) == (fill >= 0x80))
    needed = _DECIMAL_BYTES - np.cumprod(is_redundant, axis=1).sum(axis=1)
    if size is None:
        data = big[np.arange(_DECIMAL_BYTES) >= _DECIMAL_BYTES - needed[:, None]]
        offsets = np.zeros(len(array) + 1, np.int32)
        np.cumsum(needed, out=offsets[1:])
        return pa.Array.from_buffers(pa.binary(), len(array), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    wide = np.concatenate([np.repeat(fill, max(size - _DECIMAL_BYTES, 0), axis=1), big], axis=1)
    data = np.ascontiguousarray(wide[:, wide.shape[1] - size :])
    offsets = np.arange(len(array) + 1, dtype=np.int32) * size
    written = pa.Array.from_buffers(pa.binary(), len(array), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pc.if_else(pa.array(needed <= size), written, None)
