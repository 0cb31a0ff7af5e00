"""Conversion between Protobuf messages and columns; ``docs/schemas.md`` has the table.

Fields with presence are nullable columns; others are NOT NULL with Protobuf's defaults. ``repeated`` fields and maps
are NOT NULL, and empty without elements. Well-known types become the corresponding types. Source: the language guides
of proto2, proto3 and editions. ``confluent.type.Decimal`` is the Confluent registry's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pat

from millrace.errors import SchemaError
from millrace.schemas.proto_files import ProtoFile
from millrace.schemas.types import DURATION, TIME, TIMESTAMP, TIMESTAMP_NTZ, comment_of, spark_name

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

DECIMAL_MESSAGE: Final = "confluent.type.Decimal"
_META: Final = "confluent.field_meta"

# By FieldDescriptor.type, whose numbers are those of descriptor.proto.
_SCALARS: Final[dict[int, pa.DataType]] = {
    1: pa.float64(),  # double
    2: pa.float32(),  # float
    3: pa.int64(),  # int64
    4: pa.decimal128(20, 0),  # uint64
    5: pa.int32(),  # int32
    6: pa.decimal128(20, 0),  # fixed64
    7: pa.int64(),  # fixed32
    8: pa.bool_(),  # bool
    9: pa.string(),  # string
    12: pa.binary(),  # bytes
    13: pa.int64(),  # uint32
    14: pa.string(),  # enum
    15: pa.int32(),  # sfixed32
    16: pa.int64(),  # sfixed64
    17: pa.int32(),  # sint32
    18: pa.int64(),  # sint64
}
_MESSAGE_TYPES: Final = (10, 11)

WELL_KNOWN: Final[dict[str, pa.DataType]] = {
    "google.protobuf.Timestamp": TIMESTAMP,
    "google.protobuf.Duration": DURATION,
    "google.type.Date": pa.date32(),
    "google.type.TimeOfDay": TIME,
}
WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)

_WRITTEN: Final[dict[pa.DataType, tuple[str, str]]] = {
    pa.bool_(): ("bool", ""),
    pa.int8(): ("int32", ""),
    pa.int16(): ("int32", ""),
    pa.int32(): ("int32", ""),
    pa.int64(): ("int64", ""),
    pa.float32(): ("float", ""),
    pa.float64(): ("double", ""),
    pa.string(): ("string", ""),
    pa.binary(): ("bytes", ""),
    pa.date32(): ("google.type.Date", "google/type/date.proto"),
    TIMESTAMP: ("google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
    DURATION: ("google.protobuf.Duration", "google/protobuf/duration.proto"),
    TIME: ("google.type.TimeOfDay", "google/type/timeofday.proto"),
}
_KEYS: Final = {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string()}
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def parse_protobuf(file: ProtoFile, message: str = "") -> pa.Schema:
    """Return the columns of a message (by its name; without one, the only one of the file).

    Raises ``SchemaError`` with the path of a type without a column type.
    """
    return message_schema(file.message(message), file)


def message_schema(descriptor: Descriptor, file: ProtoFile) -> pa.Schema:
    """Return the columns of a message. Raises ``SchemaError`` with the path of a type without a column type."""
    return pa.schema(_fields(descriptor, file, "", ()))


def _fields(descriptor: Descriptor, file: ProtoFile, path: str, within: tuple[str, ...]) -> list[pa.Field]:
    if descriptor.full_name in within:
        raise SchemaError(
            f"{path}: message {descriptor.full_name} contains itself, which column types cannot do: end the "
            "recursion, or keep it as bytes"
        )
    if not descriptor.fields:
        raise SchemaError(
            f"{path or descriptor.full_name}: a message without fields cannot be stored: give it one, or leave it out"
        )
    within = (*within, descriptor.full_name)
    return [_field(each, file, f"{path}.{each.name}" if path else each.name, within) for each in descriptor.fields]


def _field(field: FieldDescriptor, file: ProtoFile, path: str, within: tuple[str, ...]) -> pa.Field:
    if is_map(field):
        key, value = message_of(field).fields
        item = pa.field("value", _single(value, file, f"{path}.value", within), nullable=False)
        return pa.field(field.name, pa.map_(_single(key, file, f"{path}.key", within), item), nullable=False)
    data_type = _single(field, file, path, within)
    if field.is_repeated:
        return pa.field(field.name, pa.list_(pa.field("element", data_type, nullable=False)), nullable=False)
    return pa.field(field.name, data_type, nullable=field.has_presence and not field.is_required)


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is declared as ``map<K, V>``."""
    return bool(field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry)


def message_of(field: FieldDescriptor) -> Descriptor:
    """Return the message type of a field."""
    assert field.message_type is not None
    return field.message_type


def _single(field: FieldDescriptor, file: ProtoFile, path: str, within: tuple[str, ...]) -> pa.DataType:
    if field.type not in _MESSAGE_TYPES:
        return _SCALARS[field.type]
    message = message_of(field)
    name = message.full_name
    if name in WELL_KNOWN:
        return WELL_KNOWN[name]
    if name in WRAPPERS:
        return _SCALARS[message.fields[0].type]
    if name == DECIMAL_MESSAGE:
        return _decimal(field, file, path)
    return pa.struct(_fields(message, file, path, within))


def _decimal(field: FieldDescriptor, file: ProtoFile, path: str) -> pa.DataType:
    parameters = _parameters(field, file)
    try:
        precision, scale = int(parameters["precision"]), int(parameters["scale"])
        return pa.decimal128(precision, scale)
    except (KeyError, ValueError):
        raise SchemaError(
            f"{path}: {DECIMAL_MESSAGE} does not define its digits: add [(confluent.field_meta) = {{params: [{{key: "
            '"precision", value: "10"}, {key: "scale", value: "2"}]}]'
        ) from None


def _parameters(field: FieldDescriptor, file: ProtoFile) -> dict[str, str]:
    """Return the parameters in a field's ``confluent.field_meta``."""
    try:
        extension: Any = file.pool.FindExtensionByName(_META)
    except KeyError:
        return {}
    # Options have the default pool's class, which does not know the extension.
    options = file.message_class(file.pool.FindMessageTypeByName("google.protobuf.FieldOptions"))
    return dict(options.FromString(field.GetOptions().SerializeToString()).Extensions[extension].params)


def to_protobuf(schema: pa.Schema, message: str = "Record", package: str = "") -> str:
    """Write columns as a proto3 file with one message; fields are numbered by their index.

    Some properties change: TINYINT and SMALLINT become ``int32``, structs and well-known types become nullable, and
    null arrays and maps become empty. Raises ``SchemaError`` with the path of an unsupported column. Unsupported are
    names that are no identifiers, arrays of arrays or maps, TIMESTAMP_NTZ, and maps with other keys or nested values.
    """
    writer = _Writer()
    body = list(writer.message(_name(message, message), list(schema), "", ""))
    lines = ['syntax = "proto3";', *([f"package {package};"] if package else []), ""]
    lines += [f'import "{name}";' for name in sorted(writer.imports)]
    return "\n".join([*lines, *([""] if writer.imports else []), *body]) + "\n"


class _Writer:
    def __init__(self) -> None:
        self.imports: set[str] = set()

    def message(self, name: str, fields: list[pa.Field], path: str, indent: str) -> Iterator[str]:
        yield f"{indent}message {name} {{"
        prefix = f"{path}." if path else ""
        for number, field in enumerate(fields, 1):
            yield from self._field(field, number, prefix + field.name, f"{indent}  ")
        yield f"{indent}}}"

    def _field(self, field: pa.Field, number: int, path: str, indent: str) -> Iterator[str]:
        if (comment := comment_of(field)) is not None:
            yield from (f"{indent}// {line}" for line in comment.splitlines())
        nested = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Type"
        data_type, label = field.type, "optional " if field.nullable else ""
        if pat.is_list(data_type):
            data_type, label = data_type.value_type, "repeated "
        elif pat.is_map(data_type):
            label = ""
        struct = data_type.item_type if pat.is_map(data_type) else data_type
        if pat.is_struct(struct):
            yield from self.message(nested, list(struct), path, indent)
            label = label.replace("optional ", "")
        text, options = (self._map if pat.is_map(data_type) else self._type)(data_type, nested, path)
        yield f"{indent}{label}{text} {_name(field.name, path)} = {number}{options};"

    def _map(self, data_type: pa.DataType, nested: str, path: str) -> tuple[str, str]:
        if data_type.key_type not in _KEYS:
            raise SchemaError(
                f"column {path}: keys of Protobuf's maps are whole numbers, booleans or text, not "
                f"{spark_name(data_type.key_type)}: use an array of structs"
            )
        value, options = self._type(data_type.item_type, nested, f"{path}.value")
        if options:
            raise SchemaError(f"column {path}.value: a map's values cannot be {spark_name(data_type.item_type)}")
        return f"map<{_WRITTEN[data_type.key_type][0]}, {value}>", ""

    def _type(self, data_type: pa.DataType, nested: str, path: str) -> tuple[str, str]:
        if pat.is_struct(data_type):
            return nested, ""
        if pat.is_decimal128(data_type):
            self.imports |= {"confluent/meta.proto", "confluent/type/decimal.proto"}
            digits = (("precision", data_type.precision), ("scale", data_type.scale))
            parameters = ", ".join(f'{{key: "{key}", value: "{value}"}}' for key, value in digits)
            return DECIMAL_MESSAGE, f" [({_META}) = {{params: [{parameters}]}}]"
        if data_type not in _WRITTEN:
            remedy = "use TIMESTAMP" if data_type == TIMESTAMP_NTZ else "put it into a struct"
            raise SchemaError(f"column {path}: {spark_name(data_type)} has no place in a Protobuf field: {remedy}")
        text, needed = _WRITTEN[data_type]
        if needed:
            self.imports.add(needed)
        return text, ""


def _name(name: str, path: str) -> str:
    if not _NAME.fullmatch(name):
        raise SchemaError(
            f"column {path}: {name!r} is not a Protobuf name: expected letters, digits and _, and a letter first"
        )
    return name
