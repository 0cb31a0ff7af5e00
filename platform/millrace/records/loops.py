"""Loops over the records of batches, compiled to machine code by numba.

To import this module takes 0.4 s, because of numba. On the first use on a machine the compiler needs some seconds more.
Later imports find its results in numba's cache, beside this file or in the user's cache directory. So nothing imports
it at its own import.

The loops see no Python objects, and release the interpreter's lock. Their callers pass arrays that agree in their
lengths. A position is only used after a check against the end of the data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic

from millrace.records.header import (
    ATTRIBUTES_POSITION,
    COLUMNAR_BIT,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
)
from millrace.records.varint_arrays import Bools, Bytes, Ints, Longs

_logger = logging.getLogger(__name__)

_F = TypeVar("_F", bound=Callable[..., Any])

_BYTES: Final = "Array(uint8, 1, 'C', readonly=True)"
_INTS: Final = "Array(int32, 1, 'C', readonly=True)"
_LONGS: Final = "Array(int64, 1, 'C', readonly=True)"
_COLUMN: Final = f"{_INTS}, {_INTS}, {_BYTES}"

_long: Final = cast("Callable[[Any], int]", np.int64)
_raw: Final = cast("Callable[[Any], Any]", np.uint64)
_NOWHERE: Final = -1
"""Position after something that is damaged."""
_OFFSETS_MAX: Final = 2**62
"""Bound of the offsets that are added without a check for an overflow."""


def _compiled(signature: str | None = None) -> Callable[[_F], _F]:
    """Compile a function; with a signature at once, and otherwise as a part of its callers."""

    def compile_function(function: _F) -> _F:
        if signature is None:
            return cast("_F", numba.njit(nogil=True, forceinline=True)(function))
        try:
            return cast("_F", numba.njit(signature, nogil=True, cache=True)(function))
        except RuntimeError as error:
            _logger.warning(
                "%s is compiled in each process, because numba cannot keep its result: set NUMBA_CACHE_DIR to a "
                "writable directory (%s)",
                function.__name__,
                error,
            )
            return cast("_F", numba.njit(signature, nogil=True)(function))

    return compile_function


_intrinsic: Final = cast("Callable[[Callable[..., Any]], Callable[..., None]]", intrinsic)


@_intrinsic
def _copy(typing_context: Any, target: Any, position: Any, source: Any, start: Any, size: Any) -> Any:
    """Copy bytes from one array to another. A loop over bytes takes six times as long."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, at, of, begin, count = arguments
        target_data = context.make_array(signature.args[0])(context, builder, to).data
        source_data = context.make_array(signature.args[2])(context, builder, of).data
        cgutils.raw_memcpy(builder, builder.gep(target_data, [at]), builder.gep(source_data, [begin]), count, 1)
        return context.get_dummy_value()

    return numba.types.void(target, position, source, start, size), generate


# --- reading -------------------------------------------------------------------------------------------------


@_compiled()
def _read_varint(data: Bytes, at: int, bits: int) -> tuple[int, int]:
    """Do as ``varint.read_varint``; the position is ``_NOWHERE`` if there is no integer."""
    raw, shift = _raw(0), 0
    while at < len(data) and shift < bits:
        byte = data[at]
        at += 1
        raw |= _raw(byte & 0x7F) << _raw(shift)
        if byte < 0x80:
            if bits == 32:
                raw &= _raw(0xFFFFFFFF)
            return _long(raw >> _raw(1)) ^ -_long(raw & _raw(1)), _long(at)
        shift += 7
    return _long(0), _long(_NOWHERE)


@_compiled()
def _after_bytes(data: Bytes, at: int, end: int, may_be_null: bool) -> int:
    """Return the position after a field with its size, which may be null; ``_NOWHERE`` if it goes beyond ``end``."""
    size, at = _read_varint(data, at, 32)
    if at == _NOWHERE or (size < 0 and not may_be_null):
        return _long(_NOWHERE)
    at += max(size, 0)
    return at if at <= end else _long(_NOWHERE)


@_compiled()
def _after_headers(data: Bytes, at: int, end: int) -> int:
    """Return the position after the headers of a record, or ``_NOWHERE``."""
    count, at = _read_varint(data, at, 32)
    if at == _NOWHERE or count < 0:
        return _long(_NOWHERE)
    for _ in range(count):
        at = _after_bytes(data, at, end, False)
        if at == _NOWHERE:
            return at
        at = _after_bytes(data, at, end, True)
        if at == _NOWHERE:
            return at
    return at


@_compiled(f"Tuple((boolean, int64, int64))({_BYTES}, int64, boolean)")
def walk_rows(data: Bytes, count: int, need_keys: bool) -> tuple[bool, int, int]:
    """Check that a decompressed body has ``count`` records that are numbered from 0, and nothing else.

    With ``need_keys`` each must have a key. Return whether it is so, and the smallest and the largest timestamp delta.
    """
    at = _long(0)
    smallest, largest = _long(2**63 - 1), _long(-(2**63))
    for number in range(count):
        size, at = _read_varint(data, at, 32)
        end = at + size
        if at == _NOWHERE or size < 1 or end > len(data):
            return False, smallest, largest
        timestamp, at = _read_varint(data, at + 1, 64)
        if at == _NOWHERE:
            return False, smallest, largest
        offset, at = _read_varint(data, at, 32)
        if at == _NOWHERE or offset != number:
            return False, smallest, largest
        at = _after_bytes(data, at, end, not need_keys)
        if at == _NOWHERE:
            return False, smallest, largest
        at = _after_bytes(data, at, end, True)
        if at == _NOWHERE:
            return False, smallest, largest
        at = _after_headers(data, at, end)
        if at != end:
            return False, smallest, largest
        smallest, largest = min(smallest, timestamp), max(largest, timestamp)
    return at == len(data), smallest, largest


@_compiled()
def _read_integer(data: Bytes, at: int, size: int) -> int:
    """Return the big-endian integer of ``size`` bytes at a position."""
    raw = _raw(0)
    for byte in data[at : at + size]:
        raw = (raw << _raw(8)) | _raw(byte)
    shift = _raw(64 - 8 * size)
    return _long(raw << shift) >> _long(shift)


@_compiled(f"Tuple((boolean, int64))({_BYTES}, int64)")
def walk_batches(data: Bytes, least_offset: int) -> tuple[bool, int]:
    """Check that ``data`` are whole batches of rows with ascending offsets, from ``least_offset`` on.

    Return whether it is so, and the offset after the last one.
    """
    at = _long(0)
    while at < len(data):
        if len(data) - at < HEADER_BYTES:
            return False, least_offset
        base_offset = _read_integer(data, at, 8)
        size = LOG_OVERHEAD_BYTES + _read_integer(data, at + 8, 4)
        attributes = _read_integer(data, at + ATTRIBUTES_POSITION, 2)
        delta = _read_integer(data, at + ATTRIBUTES_POSITION + 2, 4)
        is_rows = data[at + MAGIC_POSITION] == MAGIC and not attributes & COLUMNAR_BIT
        is_whole = HEADER_BYTES <= size <= len(data) - at
        if not is_rows or not is_whole or not least_offset <= base_offset < _OFFSETS_MAX or delta < 0:
            return False, least_offset
        least_offset = base_offset + delta + 1
        at += size
    return True, least_offset


FIELDS: Final = 9
"""Rows of the array that ``locate_fields`` fills."""
TIMESTAMP, OFFSET, KEY, KEY_END, VALUE, VALUE_END, HEADER_COUNT, HEADERS, END = range(FIELDS)


@_compiled(f"boolean({_BYTES}, {_LONGS}, {_LONGS}, {_LONGS}, Array(int64, 2, 'C'), Array(boolean, 2, 'C'), int64)")
def locate_fields(
    data: Bytes, starts: Longs, ends: Longs, counts: Longs, fields: Longs, nulls: Bools, headers_max: int
) -> bool:
    """Find the fields of all records of batches, whose decompressed bodies are in ``data``.

    Each body has its bounds and its number of records. ``fields`` gets deltas of timestamps and offsets, numbers of
    headers, and bounds of keys, values, headers and records. ``nulls`` tells which keys and values are null. Return
    whether all is sound, except for what the headers have in them, and no record has more than ``headers_max``.
    """
    row = _long(0)
    for batch in range(len(ends)):
        at = starts[batch]
        for _ in range(counts[batch]):
            size, at = _read_varint(data, at, 32)
            end = at + size
            if at == _NOWHERE or size < 1 or end > ends[batch]:
                return False
            fields[TIMESTAMP, row], at = _read_varint(data, at + 1, 64)
            if at == _NOWHERE:
                return False
            fields[OFFSET, row], at = _read_varint(data, at, 32)
            if at == _NOWHERE:
                return False
            for field in range(2):
                size, at = _read_varint(data, at, 32)
                if at == _NOWHERE or at + max(size, 0) > end:
                    return False
                nulls[field, row] = size < 0
                fields[KEY + 2 * field, row] = at
                at += max(size, 0)
                fields[KEY_END + 2 * field, row] = at
            count, at = _read_varint(data, at, 32)
            if at == _NOWHERE or count < 0 or count > headers_max or (count == 0 and at != end):
                return False
            fields[HEADER_COUNT, row], fields[HEADERS, row], fields[END, row] = count, at, end
            at = end
            row += 1
        if at != ends[batch]:
            return False
    return True


@_compiled(f"void({_BYTES}, {_LONGS}, {_LONGS}, Array(int32, 1, 'C'), Array(uint8, 1, 'C'))")
def copy_values(data: Bytes, starts: Longs, ends: Longs, offsets: Ints, values: Bytes) -> None:
    """Copy bytes between bounds of ``data`` one behind the other. ``offsets`` gets their bounds in ``values``."""
    at = _long(0)
    offsets[0] = 0
    for row in range(len(starts)):
        size = ends[row] - starts[row]
        if size > 0:
            _copy(values, at, data, starts[row], size)
            at += size
        offsets[row + 1] = at


# --- writing -------------------------------------------------------------------------------------------------


@_compiled()
def _varint_size(value: int) -> int:
    raw = (_raw(value) << _raw(1)) ^ _raw(_long(value) >> _long(63))
    size = _long(1)
    while raw >= _raw(0x80):
        raw >>= _raw(7)
        size += 1
    return size


@_compiled()
def _put_varint(body: Bytes, at: int, value: int) -> int:
    raw = (_raw(value) << _raw(1)) ^ _raw(_long(value) >> _long(63))
    while raw >= _raw(0x80):
        body[at] = np.uint8(raw & _raw(0x7F)) | np.uint8(0x80)
        raw >>= _raw(7)
        at += 1
    body[at] = np.uint8(raw)
    return at + 1


@_compiled(f"int64(Array(uint8, 1, 'C'), {_LONGS}, {_INTS}, {_BYTES}, {_INTS}, {_BYTES})")
def write_plain_rows(
    body: Bytes, timestamps: Longs, key_bounds: Ints, keys: Bytes, value_bounds: Ints, values: Bytes
) -> int:
    """Write records without headers and nulls into ``body``, which has room for all, and return their size.

    There is one timestamp for each record or one for all. Without bounds of keys the keys are null. If bounds do not
    ascend within their bytes, the result is ``_NOWHERE``.
    """
    at, has_keys, has_times = _long(0), len(key_bounds) > 0, len(timestamps) > 1
    for row in range(len(value_bounds) - 1):
        start, end = _long(value_bounds[row]), _long(value_bounds[row + 1])
        key_start, key_end = _long(0), _long(-1)
        if has_keys:
            key_start, key_end = _long(key_bounds[row]), _long(key_bounds[row + 1])
            if not 0 <= key_start <= key_end <= len(keys):
                return _long(_NOWHERE)
        if not 0 <= start <= end <= len(values):
            return _long(_NOWHERE)
        timestamp = timestamps[row] - timestamps[0] if has_times else _long(0)
        key_size, value_size = key_end - key_start, end - start
        size = 2 + _varint_size(timestamp) + _varint_size(row) + max(key_size, 0) + value_size
        size += _varint_size(key_size) + _varint_size(value_size)
        at = _put_varint(body, at, size)
        body[at] = 0  # attributes
        at = _put_varint(body, at + 1, timestamp)
        at = _put_varint(body, at, row)
        at = _put_varint(body, at, key_size)
        if key_size > 0:
            _copy(body, at, keys, key_start, key_size)
            at += key_size
        at = _put_varint(body, at, value_size)
        _copy(body, at, values, start, value_size)
        at += value_size
        body[at] = 0  # no headers
        at += 1
    return at


@_compiled(f"int64(Array(uint8, 1, 'C'), {_LONGS}, {_LONGS}, {_COLUMN}, {_COLUMN}, {_INTS}, {_COLUMN}, {_COLUMN})")
def write_rows(
    body: Bytes,
    timestamps: Longs,
    offsets: Longs,
    key_starts: Ints,
    key_sizes: Ints,
    keys: Bytes,
    value_starts: Ints,
    value_sizes: Ints,
    values: Bytes,
    header_bounds: Ints,
    header_key_starts: Ints,
    header_key_sizes: Ints,
    header_keys: Bytes,
    header_value_starts: Ints,
    header_value_sizes: Ints,
    header_values: Bytes,
) -> int:
    """Write records into ``body``, which has room for all, and return their size.

    Timestamps and offsets are relative to the batch's. Each column is where its values begin, their sizes, -1 for null,
    and the bytes. The headers of a record are those from its bound to the next one's.
    """
    at = _long(0)
    for row in range(len(timestamps)):
        key_size, value_size = _long(key_sizes[row]), _long(value_sizes[row])
        first, last = _long(header_bounds[row]), _long(header_bounds[row + 1])
        size = 1 + _varint_size(timestamps[row]) + _varint_size(offsets[row]) + _varint_size(last - first)
        size += _varint_size(key_size) + max(key_size, 0) + _varint_size(value_size) + max(value_size, 0)
        for header in range(first, last):
            size += _varint_size(header_key_sizes[header]) + header_key_sizes[header]
            size += _varint_size(header_value_sizes[header]) + max(header_value_sizes[header], 0)
        at = _put_varint(body, at, size)
        body[at] = 0  # attributes
        at = _put_varint(body, at + 1, timestamps[row])
        at = _put_varint(body, at, offsets[row])
        at = _put_varint(body, at, key_size)
        if key_size > 0:
            _copy(body, at, keys, _long(key_starts[row]), key_size)
            at += key_size
        at = _put_varint(body, at, value_size)
        if value_size > 0:
            _copy(body, at, values, _long(value_starts[row]), value_size)
            at += value_size
        at = _put_varint(body, at, last - first)
        for header in range(first, last):
            key_size, value_size = _long(header_key_sizes[header]), _long(header_value_sizes[header])
            at = _put_varint(body, at, key_size)
            _copy(body, at, header_keys, _long(header_key_starts[header]), key_size)
            at = _put_varint(body, at + key_size, value_size)
            if value_size > 0:
                _copy(body, at, header_values, _long(header_value_starts[header]), value_size)
                at += value_size
    return at
