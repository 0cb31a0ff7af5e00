"""Writer of columns as Protobuf messages.

Each step writes one field of all rows, in the order of the fields' numbers. A null field is absent. Fields
without presence are always written, their default values as well. The types are those of
``millrace.schemas.protobuf``. Source: Protobuf's encoding guide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.errors import SchemaError
from millrace.payloads.arrays import entry_lists, fixed_width, has_other_years, joined, joined_lists, varints, zigzags
from millrace.payloads.numbers import big_endian
from millrace.payloads.protobuf import DURATION_SECONDS_MAX
from millrace.payloads.wire import Longs, scatter
from millrace.schemas.promotion import common_type, promote
from millrace.schemas.proto_files import ProtoFile
from millrace.schemas.protobuf import DECIMAL_MESSAGE, WELL_KNOWN, WRAPPERS, is_map, message_of, message_schema
from millrace.schemas.types import spark_name

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

Writer: TypeAlias = Callable[[pa.Array], pa.BinaryArray]

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_DOUBLE, _FLOAT, _UINT64, _FIXED64, _FIXED32, _BOOL, _STRING = 1, 2, 4, 6, 7, 8, 9
_BINARY, _UINT32, _ENUM, _SFIXED32, _SFIXED64 = 12, 13, 14, 15, 16
_MESSAGES: Final = (10, 11)
_ZIGZAG: Final = (17, 18)
_EIGHTS: Final = (_DOUBLE, _FIXED64, _SFIXED64)
_FOURS: Final = (_FLOAT, _FIXED32, _SFIXED32)
_NOTHING: Final = b""
_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ProtobufWriter:
    """Writer of rows as messages of one type."""

    _schema: pa.Schema
    _write: Writer

    @classmethod
    def of(cls, file: ProtoFile, descriptor: Descriptor, columns: pa.Schema) -> ProtobufWriter:
        """Create a writer of ``columns``; a field that is no column is not written.

        Raises ``SchemaError`` if the message cannot hold the columns.
        """
        schema = message_schema(descriptor, file)
        for each in schema:
            at = columns.get_field_index(each.name)
            if at >= 0 and common_type(each.type, columns.field(at).type) is None:
                raise SchemaError(
                    f"column {each.name} is {spark_name(columns.field(at).type)}, and the message "
                    f"{descriptor.full_name} has {spark_name(each.type)}"
                )
        return cls(schema, _message(descriptor, pa.struct(list(schema)), ""))

    def write(self, columns: pa.RecordBatch) -> pa.BinaryArray:
        """Write a message for each row. Raises ``ValueError`` naming a column whose values the message cannot hold."""
        arrays = []
        for each in self._schema:
            at = columns.schema.get_field_index(each.name)
            try:
                array = pa.nulls(columns.num_rows, each.type) if at < 0 else promote(columns.column(at), each.type)
            except pa.ArrowInvalid as error:
                raise ValueError(f"column {each.name} does not fit {spark_name(each.type)}: {error}") from None
            is_repeated = pat.is_list(each.type) or pat.is_map(each.type)
            if array.null_count and not each.nullable and at >= 0 and not is_repeated:
                raise ValueError(f"column {each.name} has a null, and its field in the message has no presence")
            arrays.append(array)
        fields = [each.with_nullable(True) for each in self._schema]
        return self._write(pa.StructArray.from_arrays(arrays, fields=fields))


def _message(descriptor: Descriptor, data_type: pa.DataType, path: str) -> Writer:
    prefix = f"{path}." if path else ""
    fields = sorted(descriptor.fields, key=lambda each: each.number)
    parts = [
        (at, _field(each, data_type.field(at).type, prefix + each.name))
        for each in fields
        for at in [data_type.get_field_index(each.name)]
    ]

    def write(array: pa.Array) -> pa.BinaryArray:
        columns = array.flatten()
        return joined(*(part(columns[at]) for at, part in parts))

    return write


def _field(field: FieldDescriptor, data_type: pa.DataType, path: str) -> Writer:
    """Return the writer of a field with its tag, which writes nothing for null."""
    if is_map(field):
        return _map(field, data_type, path)
    if field.is_repeated:
        return _repeated(field, data_type, path)
    write, tag = _value(field, data_type, path), _tag(field.number, _wire_type(field))

    def written(array: pa.Array) -> pa.BinaryArray:
        if not array.null_count:
            return joined(tag, write(array))
        rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        if not len(rows):
            return pa.repeat(pa.scalar(_NOTHING, pa.binary()), len(array))
        return scatter(joined(tag, write(array.take(pa.array(rows)))), rows, len(array)).fill_null(_NOTHING)

    return written


def _repeated(field: FieldDescriptor, data_type: pa.DataType, path: str) -> Writer:
    write = _value(field, data_type.value_type, f"{path}.element")
    if not field.is_packed:
        tag = _tag(field.number, _wire_type(field))
        return lambda array: joined_lists(array, joined(tag, _written(write, array.flatten(), f"{path}.element")))
    packed_tag = _tag(field.number, _BYTES)

    def packed(array: pa.Array) -> pa.BinaryArray:
        content = joined_lists(array, _written(write, array.flatten(), f"{path}.element"))
        blocks = joined(packed_tag, _with_length(content))
        return pc.if_else(pc.equal(pc.binary_length(content), 0), _NOTHING, blocks)

    return packed


def _map(field: FieldDescriptor, data_type: pa.DataType, path: str) -> Writer:
    key, value = sorted(message_of(field).fields, key=lambda each: each.number)
    write_key = _field(key, data_type.key_type, f"{path}.key")
    write_value = _field(value, data_type.item_type, f"{path}.value")
    tag = _tag(field.number, _BYTES)

    def write(array: pa.Array) -> pa.BinaryArray:
        entries = entry_lists(array)
        keys, values = entries.flatten().flatten()
        if values.null_count:
            raise ValueError(f"column {path}.value has a null, and values of Protobuf's maps have none")
        return joined_lists(entries, joined(tag, _with_length(joined(write_key(keys), write_value(values)))))

    return write


def _written(write: Writer, array: pa.Array, path: str) -> pa.BinaryArray:
    if array.null_count:
        raise ValueError(f"column {path} has a null, and elements in Protobuf have none")
    return write(array)


def _value(field: FieldDescriptor, data_type: pa.DataType, path: str) -> Writer:
    """Return the writer of a field's values without the tag, which takes no nulls."""
    kind = field.type
    if kind in (_STRING, _BINARY):
        return lambda array: _with_length(array.cast(pa.binary()))
    if kind == _ENUM:
        assert field.enum_type is not None
        return _enum(field.enum_type, path)
    if kind in _MESSAGES:
        return _nested(message_of(field), data_type, path)
    return lambda array: _numbers(kind, array, path)


def _numbers(kind: int, array: pa.Array, path: str) -> pa.BinaryArray:
    if kind in (_DOUBLE, _FLOAT):
        return fixed_width(array)
    if kind == _BOOL:
        return fixed_width(array.cast(pa.uint8()))
    if kind in (_UINT64, _FIXED64):
        try:
            words = array.cast(pa.uint64())
        except pa.ArrowInvalid as error:
            raise ValueError(f"column {path} has a value that its field cannot hold: {error}") from None
        return varints(words.to_numpy()) if kind == _UINT64 else fixed_width(words)
    if kind in (_UINT32, _FIXED32):
        try:
            narrow = array.cast(pa.uint32())
        except pa.ArrowInvalid as error:
            raise ValueError(f"column {path} has a value that its field cannot hold: {error}") from None
        return varints(narrow.cast(pa.uint64()).to_numpy()) if kind == _UINT32 else fixed_width(narrow)
    if kind in (_SFIXED32, _SFIXED64):
        return fixed_width(array)
    values = array.cast(pa.int64()).to_numpy()
    return zigzags(values) if kind in _ZIGZAG else varints(values.view(np.uint64))


def _enum(descriptor: EnumDescriptor, path: str) -> Writer:
    numbers: dict[str, int] = {name: value.number for name, value in descriptor.values_by_name.items()}
    known = pa.array(list(numbers), pa.string())
    of_known = np.array(list(numbers.values()), np.int64)

    def write(array: pa.Array) -> pa.BinaryArray:
        places = pc.index_in(array, known)
        if not places.null_count:
            return varints(of_known[places.to_numpy()].view(np.uint64))
        try:
            found = [numbers[text] if text in numbers else int(text) for text in array.to_pylist()]
        except ValueError:
            value = array.filter(places.is_null())[0].as_py()
            raise ValueError(f"column {path} has {value!r}, which is no value of {descriptor.full_name}") from None
        return varints(np.array(found, np.int64).view(np.uint64))

    return write


def _nested(descriptor: Descriptor, data_type: pa.DataType, path: str) -> Writer:
    name = descriptor.full_name
    if name in WRAPPERS:
        write = _field(descriptor.fields[0], data_type, path)
        return lambda array: _with_length(write(array))
    if name in WELL_KNOWN or name == DECIMAL_MESSAGE:
        write_parts = {each.name: _field(each, pa.null(), path) for each in descriptor.fields}
        split = _SPLIT[name]

        def well_known(array: pa.Array) -> pa.BinaryArray:
            if _is_beyond(array):
                raise ValueError(f"column {path} has a value that is out of the range of {name}")
            return _with_length(joined(*(write_parts[part](values) for part, values in split(array).items())))

        return well_known
    content = _message(descriptor, data_type, path)
    return lambda array: _with_length(content(array))


def _is_beyond(array: pa.Array) -> bool:
    """Return whether a date, a timestamp or a duration is one that Protobuf does not have."""
    if pat.is_duration(array.type):
        limit = DURATION_SECONDS_MAX * _MICROSECONDS
        micros = _micros(array)
        return bool(((micros < -limit) | (micros > limit)).any())
    return (pat.is_timestamp(array.type) or pat.is_date(array.type)) and has_other_years(array)


def _micros(array: pa.Array) -> Longs:
    values: Longs = array.cast(pa.int64()).to_numpy()
    return values


def _timestamp(array: pa.Array) -> dict[str, pa.Array]:
    seconds, rest = np.divmod(_micros(array), _MICROSECONDS)
    return {"seconds": pa.array(seconds), "nanos": pa.array(rest * 1000)}


def _duration(array: pa.Array) -> dict[str, pa.Array]:
    micros = _micros(array)
    seconds = np.where(micros < 0, -(-micros // _MICROSECONDS), micros // _MICROSECONDS)
    return {"seconds": pa.array(seconds), "nanos": pa.array((micros - seconds * _MICROSECONDS) * 1000)}


def _date(array: pa.Array) -> dict[str, pa.Array]:
    return {"year": pc.year(array), "month": pc.month(array), "day": pc.day(array)}


def _time_of_day(array: pa.Array) -> dict[str, pa.Array]:
    minutes, nanos = np.divmod(array.cast(pa.int64()).to_numpy(), 60 * 10**9)
    hours, minutes = np.divmod(minutes, 60)
    seconds, nanos = np.divmod(nanos, 10**9)
    parts = {"hours": hours, "minutes": minutes, "seconds": seconds, "nanos": nanos}
    return {name: pa.array(values) for name, values in parts.items()}


def _decimal(array: pa.Array) -> dict[str, pa.Array]:
    digits = {"precision": array.type.precision, "scale": array.type.scale}
    repeated = {name: pa.repeat(pa.scalar(number, pa.int64()), len(array)) for name, number in digits.items()}
    return {"value": big_endian(array, None), **repeated}


_SPLIT: Final[dict[str, Callable[[pa.Array], dict[str, pa.Array]]]] = {
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Duration": _duration,
    "google.type.Date": _date,
    "google.type.TimeOfDay": _time_of_day,
    DECIMAL_MESSAGE: _decimal,
}


def _with_length(data: pa.BinaryArray) -> pa.BinaryArray:
    lengths: npt.NDArray[Any] = pc.binary_length(data).to_numpy()
    return joined(varints(lengths.astype(np.uint64)), data)


def _wire_type(field: FieldDescriptor) -> int:
    if field.type in _EIGHTS:
        return _EIGHT
    if field.type in _FOURS:
        return _FOUR
    return _BYTES if field.type in (_STRING, _BINARY, *_MESSAGES) else _VARINT


def _tag(number: int, wire_type: int) -> bytes:
    tag: bytes = varints(np.array([number << 3 | wire_type], np.uint64))[0].as_py()
    return tag
