"""Promotion of types, for reading records of older schema versions.

Integers widen to longer ones, to decimals with enough digits, and to floats that hold each value exactly. Floats
widen to doubles, and decimals to others with as many digits before and after the point. Structs, arrays and map
values follow their fields. No other conversion keeps the value: strings are not parsed, and time zones are not
invented.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.types as pat

from millrace.schemas.types import DECIMAL_MAX_PRECISION

_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
"""Decimal digits of integers, as Arrow requires before the point of a decimal."""

_FLOATS_EXACTLY: Final = {pa.int8(): pa.float32(), pa.int16(): pa.float32(), pa.int32(): pa.float64()}
"""Shortest float that holds each value exactly; none for BIGINT."""


def common_type(newer: pa.DataType, older: pa.DataType) -> pa.DataType | None:
    """Return the narrowest stored type that holds the values of both; None without one.

    Structs have the fields of ``newer``. A field that is missing or nullable in ``older`` is nullable.
    """
    if newer == older:
        return newer
    if pat.is_struct(newer) and pat.is_struct(older):
        return _common_struct(newer, older)
    if pat.is_list(newer) and pat.is_list(older):
        element = _common_field(newer.value_field, older.value_field)
        return None if element is None else pa.list_(element)
    if pat.is_map(newer) and pat.is_map(older):
        item = _common_field(newer.item_field, older.item_field)
        return None if item is None or newer.key_type != older.key_type else pa.map_(newer.key_field, item)
    return _common_number(newer, older)


def _common_struct(newer: pa.DataType, older: pa.DataType) -> pa.DataType | None:
    fields = []
    for field in newer:
        at = older.get_field_index(field.name)
        common = field.with_nullable(True) if at < 0 else _common_field(field, older.field(at))
        if common is None:
            return None
        fields.append(common)
    return pa.struct(fields)


def _common_field(newer: pa.Field, older: pa.Field) -> pa.Field | None:
    data_type = common_type(newer.type, older.type)
    if data_type is None:
        return None
    return pa.field(newer.name, data_type, newer.nullable or older.nullable, newer.metadata)


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if left in _DIGITS and right in _DIGITS:
        return max(left, right, key=_DIGITS.__getitem__)
    if pat.is_floating(left) and pat.is_floating(right):
        return pa.float64()
    for whole, other in ((left, right), (right, left)):
        if pat.is_floating(other) and whole in _FLOATS_EXACTLY:
            return max(_FLOATS_EXACTLY[whole], other, key=lambda data_type: data_type.bit_width)
    left_digits, right_digits = _decimal_digits(left), _decimal_digits(right)
    if left_digits is None or right_digits is None:
        return None
    before, after = (max(pair) for pair in zip(left_digits, right_digits, strict=True))
    return pa.decimal128(before + after, after) if before + after <= DECIMAL_MAX_PRECISION else None


def _decimal_digits(data_type: pa.DataType) -> tuple[int, int] | None:
    """Return the digits before and after the point."""
    if data_type in _DIGITS:
        return _DIGITS[data_type], 0
    if pat.is_decimal128(data_type):
        return data_type.precision - data_type.scale, data_type.scale
    return None


def promote(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Cast values to a type from ``common_type``; costs nothing for the same type."""
    if array.type.equals(data_type):
        return array
    if pat.is_nested(array.type) and array.offset:
        # Casts of nested arrays ignore the slice.
        array = pa.concat_arrays([array, array.slice(0, 0)])
    return array.cast(data_type)
