"""Avro's schema resolution of record fields, with the reader's default values.

The fields of a writer's record become those of the reader's record, by name or alias. A field that the writer did not
have gets the reader's default, within nested records too. Fields that only the writer has stay. An unknown symbol of
an enum becomes the default of the reader's enum; without one it stays. Integers become floats, and text becomes bytes.
Other promotions come later, to the types of the columns. Source: Avro 1.12's specification, "Schema Resolution".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.errors import SchemaError
from millrace.payloads.avro import AvroReader, reader_of
from millrace.payloads.wire import Cursor
from millrace.schemas.avro import AvroNames, AvroSchema, is_nullable, load_avro

_INTEGER_BITS: Final = {"int": 32, "long": 64}
_FLOATS: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


_LEAVES: Final = {"float": pa.float32(), "double": pa.float64(), "bytes": pa.binary()}
_NOT_OF_TYPE: Final = (KeyError, TypeError, ValueError, OverflowError, AttributeError, struct.error)
"""Errors of encoding a value as another type."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Conversion of a writer's values to the fields of the reader's schema. ``type`` is that of the result."""

    type: pa.DataType
    apply: Callable[[pa.Array], pa.Array]


def resolved(reader: AvroReader, wanted_schema: str, references: Mapping[str, str]) -> AvroReader:
    """Return a reader of the same payloads whose result has the fields of the reader's schema, ``wanted_schema``.

    Raises ``SchemaError`` as ``resolution`` does.
    """
    schema, names = load_avro(wanted_schema, references)
    found = resolution(pa.struct(list(reader.schema)), schema, names)
    if found is None:
        return reader
    return AvroReader(pa.schema(list(found.type)), lambda cursor: found.apply(reader.read_struct(cursor)))


def resolution(written: pa.DataType, schema: AvroSchema, names: AvroNames, path: str = "") -> Resolution | None:
    """Return how values become those of the reader's ``schema``; None if they need no change.

    Raises ``SchemaError`` for a default that is needed and that its field cannot have.
    """
    schema = names.resolve(schema)
    if isinstance(schema, list):
        present = [each for each in schema if each != "null"]
        return resolution(written, present[0], names, path) if len(present) == 1 else None
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(schema, str) or kind in _LEAVES:
        return None if isinstance(schema, dict) and "logicalType" in schema else _of_leaf(written, kind)
    if kind == "enum" and pat.is_string(written):
        return _of_enum(written, schema)
    if kind == "record" and pat.is_struct(written):
        return _of_record(written, schema, names, path)
    if kind == "array" and pat.is_list(written):
        inner = resolution(written.value_type, schema["items"], names, f"{path}.element")
        return inner and _of_list(written, inner)
    if kind == "map" and pat.is_map(written):
        inner = resolution(written.item_type, schema["values"], names, f"{path}.value")
        return inner and _of_map(written, inner)
    return None


def _of_leaf(written: pa.DataType, kind: str) -> Resolution | None:
    """Return a promotion that other formats and older rows of a topic do not have."""
    data_type = _LEAVES.get(kind)
    if data_type is None or not (pat.is_string if kind == "bytes" else pat.is_integer)(written):
        return None
    return Resolution(data_type, lambda array: array.cast(data_type, safe=False))


def _of_enum(written: pa.DataType, schema: dict[str, Any]) -> Resolution | None:
    default = schema.get("default")
    if default is None:
        return None
    symbols = pa.array([*schema["symbols"], None], pa.string())
    return Resolution(written, lambda array: pc.if_else(pc.is_in(array, symbols), array, default))


def _of_record(written: pa.DataType, schema: dict[str, Any], names: AvroNames, path: str) -> Resolution | None:
    prefix = f"{path}." if path else ""
    fields = list(written)
    inner: dict[int, Resolution] = {}
    added: list[pa.Scalar] = []
    is_renamed = False
    own_names = {each["name"] for each in schema["fields"]}
    for each in schema["fields"]:
        name = each["name"]
        at = _place(written, each, own_names)
        if at >= 0:
            is_renamed = is_renamed or fields[at].name != name
            fields[at] = fields[at].with_name(name)
            found = resolution(written.field(at).type, each["type"], names, prefix + name)
            if found is not None:
                inner[at] = found
                fields[at] = fields[at].with_type(found.type)
        elif each.get("default") is not None:
            added.append(default_value(each, names, prefix + name))
            fields.append(pa.field(name, added[-1].type, is_nullable(names.resolve(each["type"]))))
    if not (inner or added or is_renamed):
        return None

    def apply(array: pa.Array) -> pa.Array:
        parts = [inner[at].apply(part) if at in inner else part for at, part in enumerate(array.flatten())]
        parts += [pa.repeat(default, len(array)) for default in added]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null() if array.null_count else None)

    return Resolution(pa.struct(fields), apply)


def _place(written: pa.DataType, field: dict[str, Any], own_names: Collection[str]) -> int:
    """Return the index of the writer's field for a field of the reader, or -1.

    Fields match by name, or else by an alias that is not the name of another field.
    """
    aliases = [alias for alias in field.get("aliases", ()) if alias not in own_names]
    places = (written.get_field_index(name) for name in (field["name"], *aliases))
    return next((at for at in places if at >= 0), -1)


def _of_list(written: pa.DataType, inner: Resolution) -> Resolution:
    data_type = pa.list_(written.value_field.with_type(inner.type))

    def apply(array: pa.Array) -> pa.Array:
        return pa.Array.from_buffers(data_type, len(array), array.buffers()[:2], children=[inner.apply(array.values)])

    return Resolution(data_type, apply)


def _of_map(written: pa.DataType, inner: Resolution) -> Resolution:
    data_type = pa.map_(written.key_field, written.item_field.with_type(inner.type))
    entry = pa.struct([data_type.key_field, data_type.item_field])

    def apply(array: pa.Array) -> pa.Array:
        children = [array.keys, inner.apply(array.items)]
        entries = pa.Array.from_buffers(entry, len(array.keys), [None], children=children)
        return pa.Array.from_buffers(data_type, len(array), array.buffers()[:2], children=[entries])

    return Resolution(data_type, apply)


def default_value(field: dict[str, Any], names: AvroNames, path: str) -> pa.Scalar:
    """Return the default of a field as a column value. Raises ``SchemaError`` if the field cannot have it."""
    cursor = Cursor.over(pa.array([default_bytes(field, names, path)], pa.binary()))
    values = reader_of(field["type"], names, path)(cursor)
    for text in cursor.faults.texts().values():
        raise SchemaError(f"the default of an Avro field does not fit its type: {text}")
    return values[0]


def default_bytes(field: dict[str, Any], names: AvroNames, path: str) -> bytes:
    """Return the default of a field in Avro's binary encoding. Raises ``SchemaError`` if the field cannot have it."""
    try:
        return _encoded(field["default"], field["type"], names)
    except _NOT_OF_TYPE:
        raise SchemaError(
            f"the field {path} of the Avro schema has the default {field['default']!r}, which is not a value of its "
            "type: change the default"
        ) from None


def _encoded(value: Any, schema: AvroSchema, names: AvroNames) -> bytes:
    """Encode a default as the schema's JSON has it: bytes are text of their code points, unions have no names."""
    schema = names.resolve(schema)
    if isinstance(schema, list):
        return _encoded_union(value, schema, names)
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(schema, dict) and kind in ("array", "map", "record"):
        return _encoded_nested(value, schema, names)
    if isinstance(schema, dict) and kind == "enum":
        return _encoded_integer(schema["symbols"].index(value))
    if kind in _INTEGER_BITS:
        return _encoded_integer(value, _INTEGER_BITS[kind])
    if kind in _FLOATS:
        return _FLOATS[kind].pack(float(value))
    if kind == "string":
        return _sized(value.encode())
    if kind == "bytes":
        return _sized(value.encode("latin-1"))
    if kind == "boolean":
        return {True: b"\1", False: b"\0"}[value]
    data: bytes = value.encode("latin-1")
    if isinstance(schema, dict) and len(data) == schema["size"]:
        return data
    raise ValueError(value)


def _encoded_nested(value: Any, schema: dict[str, Any], names: AvroNames) -> bytes:
    if schema["type"] == "record":
        fields = [(each["type"], value.get(each["name"], each.get("default"))) for each in schema["fields"]]
        return b"".join(_encoded(of_field, of_type, names) for of_type, of_field in fields)
    if schema["type"] == "map":
        items = [_sized(key.encode()) + _encoded(each, schema["values"], names) for key, each in value.items()]
    elif type(value) is list:
        items = [_encoded(each, schema["items"], names) for each in value]
    else:
        raise ValueError(value)
    return (_encoded_integer(len(items)) + b"".join(items) if items else b"") + b"\0"


def _encoded_union(value: Any, schemas: list[Any], names: AvroNames) -> bytes:
    """Encode with the first alternative that has the value, as Avro 1.12 allows. Earlier versions take the first."""
    if value is None:
        return _encoded_integer(schemas.index("null"))
    for number, each in enumerate(schemas):
        try:
            if each != "null":
                return _encoded_integer(number) + _encoded(value, each, names)
        except _NOT_OF_TYPE:
            continue
    raise ValueError(value)


def _encoded_integer(value: Any, bits: int = 64) -> bytes:
    if type(value) is not int or not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError(value)
    zigzag, data = (value << 1) ^ (value >> 63), bytearray()
    while zigzag > 0x7F:
        data.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*data, zigzag])


def _sized(data: bytes) -> bytes:
    return _encoded_integer(len(data)) + data
