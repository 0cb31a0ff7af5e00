"""Reading of JSON objects in Python, a column at a time.

The values of a column are converted together, and only kinds of values that ``pa.array`` would take differently are
converted one by one. The conversions are those of ``json_values``, so both modules accept the same values. This module
words no faults: it only tells which objects do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from millrace.payloads.json_values import MISFITS, decoder_of, leaf_of

_SPACE: Final = " \t\n\r"
_ABSENT: Final = type(None)


def columns_of(payloads: pa.Array, columns: Sequence[pa.Field], odd: set[int]) -> pa.StructArray:
    """Read an object of each payload. The rows of those that do not fit ``columns`` are added to ``odd``.

    All columns of the result are nullable, and the values of odd rows have no meaning.
    """
    objects = _parsed(payloads.to_pylist())
    rows = range(len(objects))
    odd.update(row for row, each in zip(rows, objects, strict=True) if each is None)
    return _struct(objects, rows, columns, [each.with_nullable(True) for each in columns], odd)


def _parsed(payloads: Sequence[bytes]) -> list[dict[str, Any] | None]:
    """Parse objects; None for a payload that is none, and for one with a number that no decimal has."""
    found: list[dict[str, Any] | None] = []
    for payload in payloads:
        try:
            text = payload.decode().strip(_SPACE)
            value, end = decoder_of(len(text), Decimal).raw_decode(text)
        except (RecursionError, *MISFITS):
            found.append(None)
        else:
            found.append(value if end == len(text) and type(value) is dict else None)
    return found


def _array(values: list[Any], rows: Sequence[int], field: pa.Field, odd: set[int]) -> pa.Array:
    """Return values as an array; ``rows`` has the object of each. One that does not fit becomes null."""
    if not field.nullable:
        odd.update(row for row, value in zip(rows, values, strict=True) if value is None)
    data_type = field.type
    if pat.is_struct(data_type):
        return _struct(_of_kind(values, rows, dict, odd), rows, list(data_type), list(data_type), odd)
    if pat.is_list(data_type):
        return _lists(_of_kind(values, rows, list, odd), rows, data_type, odd)
    if pat.is_map(data_type):
        return _maps(_of_kind(values, rows, dict, odd), rows, data_type, odd)
    return _leaves(values, rows, data_type, odd)


def _of_kind(values: list[Any], rows: Sequence[int], kind: type, odd: set[int]) -> list[Any]:
    if {kind, _ABSENT}.issuperset(map(type, values)):
        return values
    odd.update(row for row, value in zip(rows, values, strict=True) if type(value) not in (kind, _ABSENT))
    return [value if type(value) is kind else None for value in values]


def _leaves(values: list[Any], rows: Sequence[int], data_type: pa.DataType, odd: set[int]) -> pa.Array:
    kind = _plain_kind(data_type)
    if kind is not None and {kind, _ABSENT}.issuperset(map(type, values)):
        try:
            return pa.array(values, data_type)
        except MISFITS:
            pass
    convert = leaf_of(data_type)
    try:
        return pa.array([None if value is None else convert(value) for value in values], data_type)
    except MISFITS:
        pass
    converted = []
    for row, value in zip(rows, values, strict=True):
        try:
            converted.append(None if value is None else convert(value))
        except MISFITS:
            odd.add(row)
            converted.append(None)
    return pa.array(converted, data_type)


def _plain_kind(data_type: pa.DataType) -> type | None:
    """Return the kind of values that ``pa.array`` takes, or refuses, as ``json_values`` does."""
    if pat.is_boolean(data_type):
        return bool
    if pat.is_string(data_type):
        return str
    return int if pat.is_integer(data_type) else None


def _struct(
    values: Sequence[Any], rows: Sequence[int], columns: Sequence[pa.Field], fields: list[pa.Field], odd: set[int]
) -> pa.StructArray:
    """Return objects as a struct with ``fields``, after a check of the nullability of ``columns``."""
    is_there = [value is not None for value in values]
    if not all(is_there):
        rows = [row for row, value in zip(rows, values, strict=True) if value is not None]
    objects = [value for value in values if value is not None]
    parts = [_array([each.get(column.name) for each in objects], rows, column, odd) for column in columns]
    struct = pa.StructArray.from_arrays(parts, fields=fields)
    if len(objects) == len(values):
        return struct
    place = np.cumsum(is_there, dtype=np.int32) - 1
    return struct.take(pa.array(place, mask=~np.array(is_there)))


def _lists(values: list[Any], rows: Sequence[int], data_type: pa.DataType, odd: set[int]) -> pa.ListArray:
    elements = [each for value in values if value for each in value]
    owners = [row for row, value in zip(rows, values, strict=True) if value for _ in value]
    array = _array(elements, owners, data_type.value_field, odd)
    return pa.ListArray.from_arrays(_offsets(values), array, type=data_type, mask=_mask(values))


def _maps(values: list[Any], rows: Sequence[int], data_type: pa.DataType, odd: set[int]) -> pa.MapArray:
    owners = [row for row, value in zip(rows, values, strict=True) if value for _ in value]
    keys = _leaves([name for value in values if value for name in value], owners, data_type.key_type, odd)
    members = [each for value in values if value for each in value.values()]
    if keys.null_count:
        keys = keys.fill_null("")  # of an odd row, because Arrow has no maps with null keys
    items = _array(members, owners, data_type.item_field, odd)
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=data_type, mask=_mask(values))


def _offsets(values: list[Any]) -> pa.Array:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) if value else 0 for value in values], out=offsets[1:])
    return pa.array(offsets)


def _mask(values: list[Any]) -> pa.BooleanArray | None:
    return pa.array([value is None for value in values], pa.bool_()) if any(value is None for value in values) else None
