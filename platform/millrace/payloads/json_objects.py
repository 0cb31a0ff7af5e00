"""Decoding of JSON objects to columns, in bulk with Arrow's reader.

Each payload becomes ``{"v":<payload>}``, so that an incomplete value fails there and cannot extend into the next
payload. The payload ``{},"x":1`` would be a valid property, and its ``x`` a further one. Therefore every property must
be a column. If some are not, the payloads must also be valid as elements, ``{"v":[<payload>]}``, which ``{},"x":1`` is
not.

If Arrow's reader fails, or accepts values that JSON does not have (NaN), the decoder tries pieces of the payloads.
``json_columns`` reads a piece in which that happens, and all payloads of columns with maps, which Arrow's reader does
not support. Only the payloads that ``json_columns`` refuses are read one by one, which determines their faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pat

from millrace.payloads.arrays import has_other_years, pieces
from millrace.payloads.json_columns import columns_of
from millrace.payloads.json_values import MISFITS, NotAValueError, leaf_of, parse_json, struct_of
from millrace.schemas.types import DECIMAL_MAX_PRECISION, DURATION

_FEW: Final = 16
"""Number of rows that Arrow's reader does not read, because an attempt costs as much as their columns."""

_UNEXPECTED: Final = "unexpected field"
_MORE: Final = r'\}\s*,\s*"'
"""A property after the end of an object. Every payload that adds properties has one."""
_NO_NUMBER: Final = r"[:,\[]\s*-?(?:NaN|Inf)"
_PROPERTY: Final = (b'{"v":', b"}\n")
_ELEMENT: Final = (b'{"v":[', b"]}\n")
_NOTHING: Final = b""


@dataclass(frozen=True, slots=True)
class JsonReader:
    """Reader of payloads that are JSON objects.

    The properties of an object are the columns of ``schema``.
    """

    schema: pa.Schema

    def read(self, payloads: pa.Array, add_fault: Callable[[int, str], None]) -> pa.RecordBatch:
        """Read an object of each payload; rows with a fault are null."""
        is_for_arrow = not any(_has_map(field.type) for field in self.schema)
        struct = self._attempt(payloads) if is_for_arrow else None
        if struct is None:
            places = list(pieces(payloads))
            is_for_arrow &= len(places) > 1
            found = []
            for first, length in places:
                part = payloads.slice(first, length)
                array = self._attempt(part) if is_for_arrow else None
                found.append(self._by_columns(part, first, add_fault) if array is None else array)
            struct = pa.concat_arrays(found) if found else pa.array([], pa.struct(_nullable(list(self.schema))))
        return pa.RecordBatch.from_arrays(struct.flatten(), names=self.schema.names)

    def _attempt(self, payloads: pa.Array) -> pa.Array | None:
        return _read(payloads, self.schema) if len(payloads) > _FEW else None

    def _by_columns(self, payloads: pa.Array, first: int, add_fault: Callable[[int, str], None]) -> pa.Array:
        """Read payloads a column at a time, and those that do not fit one by one."""
        odd: set[int] = set()
        array = columns_of(payloads, list(self.schema), odd)
        if not odd:
            return array
        rows = np.array(sorted(odd))
        place = np.arange(len(payloads))
        place[rows] = len(payloads) + np.arange(len(rows))

        def add_odd(at: int, text: str) -> None:
            add_fault(first + int(rows[at]), text)

        return pa.concat_arrays([array, self._one_by_one(payloads.take(pa.array(rows)), add_odd)]).take(pa.array(place))

    def _one_by_one(self, payloads: pa.Array, add_fault: Callable[[int, str], None]) -> pa.Array:
        values: list[Any] = []
        fields = list(self.schema)
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                value = parse_json(payload)
                if not isinstance(value, dict):
                    raise NotAValueError(f"expected an object, found {type(value).__name__}")
                values.append(struct_of(value, fields, ""))
            except NotAValueError as error:
                add_fault(row, str(error))
                values.append(None)
        return pa.array(values, pa.struct(_nullable(fields)))


def _read(payloads: pa.Array, schema: pa.Schema) -> pa.Array | None:
    """Read all payloads at once; returns None if one is invalid, or if Arrow's reader does not support it."""
    try:
        payloads.cast(pa.string())
        array = _parsed(payloads, schema)
        if array is None or array.null_count:
            return None
        fields = [_converted(part, field) for part, field in zip(array.flatten(), schema, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=_nullable(list(schema)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, _GiveUpError):
        return None


def _parsed(payloads: pa.Array, schema: pa.Schema) -> pa.Array | None:
    """Return the objects with columns as Arrow's reader takes them; None unless each payload is one value."""
    wrapped = pa.schema([("v", pa.struct([_physical(field) for field in schema]))])
    text = _wrapped(payloads, *_PROPERTY)
    try:
        table = _table(text, wrapped, "error")
    except pa.ArrowInvalid as error:
        if _UNEXPECTED not in str(error):
            raise
        table = _table(text, wrapped, "ignore")
        whole = pa.array([text.to_pybytes()], pa.binary())
        if _has_no_number(whole) or (_has(whole, _MORE) and _elements(payloads) != len(payloads)):
            return None
    if table.num_rows != len(payloads):
        return None
    column = table.column(0)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _has_no_number(text: pa.BinaryArray) -> bool:
    """Return whether a value may be one of Arrow's floats without a number, also in a property that is no column."""
    return (_has(text, "NaN") or _has(text, "Inf")) and _has(text, _NO_NUMBER)  # the plain words are found much faster


def _has(text: pa.BinaryArray, pattern: str) -> bool:
    found: bool = pc.any(pc.match_substring_regex(text, pattern)).as_py()
    return found


def _elements(payloads: pa.Array) -> int:
    """Return the number of arrays of one element or more. Raises ``pa.ArrowInvalid`` for what is no array."""
    rows: int = _table(_wrapped(payloads, *_ELEMENT), pa.schema([]), "ignore").num_rows
    return rows


def _wrapped(payloads: pa.Array, prefix: bytes, suffix: bytes) -> pa.Buffer:
    return pc.binary_join_element_wise(prefix, payloads, suffix, _NOTHING).buffers()[2]


def _table(text: pa.Buffer, schema: pa.Schema, unexpected: str) -> pa.Table:
    return pj.read_json(
        pa.BufferReader(text),
        pj.ReadOptions(use_threads=False, block_size=max(text.size, 1 << 16)),
        pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected, newlines_in_values=True),
    )


class _GiveUpError(Exception):
    """Failure of the fast path, which accepted an invalid value.

    The value is not JSON, or the column does not accept it.
    """


def _nullable(fields: list[pa.Field]) -> list[pa.Field]:
    return [field.with_nullable(True) for field in fields]


def _has_map(data_type: pa.DataType) -> bool:
    if pat.is_map(data_type):
        return True
    return any(_has_map(data_type.field(at).type) for at in range(data_type.num_fields))


def _physical(field: pa.Field) -> pa.Field:
    """Return a column as Arrow's reader takes it: types that are text in JSON are read as text first."""
    data_type = field.type
    if pat.is_struct(data_type):
        data_type = pa.struct([_physical(each) for each in data_type])
    elif pat.is_list(data_type):
        data_type = pa.list_(_physical(data_type.value_field))
    elif pat.is_temporal(data_type) or pat.is_binary(data_type):
        data_type = pa.string()
    return pa.field(field.name, data_type)


def _converted(array: pa.Array, field: pa.Field) -> pa.Array:
    """Convert a read array to the column type; raises for values that the one-by-one reader would refuse."""
    data_type = field.type
    if not field.nullable and array.null_count:
        raise _GiveUpError
    if pat.is_struct(data_type):
        return _struct(array, data_type)
    if pat.is_list(data_type):
        values = _converted(array.flatten(), data_type.value_field)
        return pa.ListArray.from_arrays(array.offsets, values, type=data_type, mask=array.is_null())
    if pat.is_floating(data_type):
        if not pc.all(pc.is_finite(array)).as_py() and pc.any(pc.invert(pc.is_finite(array))).as_py():
            raise _GiveUpError
        return array
    if pat.is_decimal(data_type):
        # Arrow's reader does not check the number of digits before the point, and the narrowing cast does.
        return array.cast(pa.decimal128(DECIMAL_MAX_PRECISION, data_type.scale)).cast(data_type)
    if pat.is_binary(data_type) or pat.is_time(data_type) or data_type == DURATION:
        return _by_value(array, data_type)
    if pat.is_timestamp(data_type) and pc.any(pc.not_equal(pc.utf8_slice_codeunits(array, 10, 11), "T")).as_py():
        # Arrow also accepts dates and blanks.
        raise _GiveUpError
    array = array if array.type == data_type else array.cast(data_type)
    if (pat.is_timestamp(data_type) or pat.is_date(data_type)) and has_other_years(array):
        raise _GiveUpError
    return array


def _struct(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    present = array.filter(array.is_valid()) if array.null_count else array
    parts = [_converted(part, each) for part, each in zip(present.flatten(), data_type, strict=True)]
    struct = pa.StructArray.from_arrays(parts, fields=list(data_type))
    if not array.null_count:
        return struct
    valid = array.is_valid()
    place = pc.subtract(pc.cumulative_sum(valid.cast(pa.int32())), 1)
    return struct.take(pc.if_else(valid, place, pa.scalar(None, pa.int32())))


def _by_value(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    convert = leaf_of(data_type)
    try:
        return pa.array([None if value is None else convert(value) for value in array.to_pylist()], data_type)
    except MISFITS:
        raise _GiveUpError from None
