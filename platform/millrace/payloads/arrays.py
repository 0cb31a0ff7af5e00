"""Operations on columns of bytes and lists for payloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

_DAYS: Final = (-719_162, 2_932_896)
"""First day of year 1 and last day of year 9999, from 1970 on."""
_MICROSECONDS: Final = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
_VARINT_BYTES_MAX: Final = 10
_PIECE_ROWS: Final = 4096
_PIECE_BYTES: Final = 2**20
"""Rows and bytes of a piece. Values in Python take up to thirty times the bytes of their JSON text."""
_U: Final = [np.uint64(number) for number in range(64)]


def pieces(payloads: pa.BinaryArray) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of pieces, which together are all payloads."""
    if not len(payloads):
        return
    ends = np.frombuffer(payloads.buffers()[1], np.int32)[payloads.offset :][: len(payloads) + 1]
    first = 0
    while first < len(payloads):
        fitting = int(np.searchsorted(ends, int(ends[first]) + _PIECE_BYTES, "right")) - 1 - first
        length = min(max(fitting, 1), _PIECE_ROWS, len(payloads) - first)
        yield first, length
        first += length


def joined(*parts: pa.Array | bytes) -> pa.BinaryArray:
    """Join the bytes of each row; null if a part is null."""
    return pc.binary_join_element_wise(*parts, b"")


def joined_lists(array: pa.ListArray, items: pa.Array, separator: str | bytes = b"") -> pa.Array:
    """Join the written elements of each list. ``items`` has those of all lists that are not null, in order."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), separator)


def entry_lists(array: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of their entries."""
    whole = pa.concat_arrays([array, array.slice(0, 0)])  # casts of nested arrays ignore the slice
    return whole.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))


def zigzags(values: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Write signed variable-length integers: 0, -1, 1 and -2 are 0, 1, 2 and 3."""
    return varints(((values << 1) ^ (values >> 63)).view(np.uint64))


def varints(values: npt.NDArray[np.uint64]) -> pa.BinaryArray:
    """Write unsigned variable-length integers: seven bits a byte, the lowest first."""
    sizes = np.ones(len(values), np.int64)
    for size in range(1, _VARINT_BYTES_MAX):
        longer = values >= (_U[1] << _U[7 * size])
        if not longer.any():
            break
        sizes += longer
    width = int(sizes.max(initial=1))
    shifts = np.arange(width, dtype=np.uint64) * _U[7]
    places = np.arange(width)
    table = ((values[:, None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    table |= np.where(places < sizes[:, None] - 1, 0x80, 0).astype(np.uint8)
    data: npt.NDArray[Any] = table[places < sizes[:, None]]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def has_other_years(array: pa.Array) -> bool:
    """Return whether a date or timestamp is outside the years 1 to 9999, which ISO 8601 and Python have."""
    number, least, most = (pa.int32(), *_DAYS) if pat.is_date(array.type) else (pa.int64(), *_MICROSECONDS)
    found = pc.min_max(array.view(number))
    return array.null_count < len(array) and not least <= found["min"].as_py() <= found["max"].as_py() <= most


def fixed_width(array: pa.Array) -> pa.BinaryArray:
    """View the values of a type of whole bytes as their bytes, little-endian."""
    width = array.type.bit_width // 8
    offsets = pa.py_buffer(np.arange(len(array) + 1, dtype=np.int32) * width)
    data = array.buffers()[1].slice(array.offset * width, len(array) * width)
    return pa.Array.from_buffers(pa.binary(), len(array), [None, offsets, data])


def retyped(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return the same values with a type that differs in the nullability of nested fields only."""
    if array.type.equals(data_type):
        return array
    if array.offset:
        array = pa.concat_arrays([array, array.slice(0, 0)])
    if pat.is_struct(data_type):
        children = [retyped(array.field(at), data_type.field(at).type) for at in range(data_type.num_fields)]
        return pa.Array.from_buffers(data_type, len(array), array.buffers()[:1], children=children)
    if pat.is_map(data_type):
        entry = pa.struct([data_type.key_field, data_type.item_field])
        values = [array.keys, retyped(array.items, data_type.item_type)]
        entries = pa.Array.from_buffers(entry, len(array.keys), [None], children=values)
        return pa.Array.from_buffers(data_type, len(array), array.buffers()[:2], children=[entries])
    return pa.Array.from_buffers(
        data_type, len(array), array.buffers()[:2], children=[retyped(array.values, data_type.value_type)]
    )
