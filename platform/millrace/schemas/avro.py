"""Conversion between Avro schemas and columns; ``docs/schemas.md`` has the table.

A record is a schema, and ``["null", T]`` is a nullable column. Logical types become the corresponding types. Other
unions become structs with a nullable field for each alternative, as in Spark. Source: Avro 1.12's specification.
Kafka Connect adds ``connect.type`` to small integers, and Spark adds ``spark.sql.catalyst.type`` to intervals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat

from millrace.errors import EnvironmentProblemError, SchemaError
from millrace.schemas.types import (
    DECIMAL_MAX_PRECISION,
    DURATION,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    comment_of,
    spark_name,
)

AvroSchema = dict[str, Any] | list[Any] | str

_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

_LOGICAL: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): TIME,
    ("long", "time-micros"): TIME,
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): TIMESTAMP_NTZ,
    ("long", "local-timestamp-micros"): TIMESTAMP_NTZ,
    ("fixed", "uuid"): pa.string(),
}

_WRITTEN: Final[dict[pa.DataType, AvroSchema]] = {
    pa.bool_(): "boolean",
    pa.int8(): {"type": "int", "connect.type": "int8"},
    pa.int16(): {"type": "int", "connect.type": "int16"},
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.binary(): "bytes",
    pa.string(): "string",
    pa.date32(): {"type": "int", "logicalType": "date"},
    TIME: {"type": "long", "logicalType": "time-micros"},
    TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
    TIMESTAMP_NTZ: {"type": "long", "logicalType": "local-timestamp-micros"},
    DURATION: {"type": "long", "spark.sql.catalyst.type": "interval day to second"},
}

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONNECT: Final = {"int8": pa.int8(), "int16": pa.int16()}


class AvroNames:
    """Named types of a schema and of its references."""

    def __init__(self) -> None:
        self.types: dict[str, Any] = {}

    def resolve(self, schema: AvroSchema) -> AvroSchema:
        """Return the definition of a name; anything else is returned unchanged."""
        if isinstance(schema, str) and schema not in _PRIMITIVES and schema != "null":
            found: AvroSchema = self.types[schema]
            return found
        if isinstance(schema, dict) and isinstance(schema["type"], (dict, list)):
            return self.resolve(schema["type"])
        return schema


def load_avro(source: str | AvroSchema, references: Mapping[str, str] | None = None) -> tuple[AvroSchema, AvroNames]:
    """Parse an Avro schema; ``references`` are texts of schemas whose names it uses. Raises ``SchemaError``."""
    try:
        import fastavro.schema
    except ModuleNotFoundError as error:
        raise EnvironmentProblemError(
            "Avro schemas need the Python package fastavro: install millrace[schemas]"
        ) from error
    names = AvroNames()
    try:
        for text in (references or {}).values():
            fastavro.schema.parse_schema(json.loads(text), names.types)
        loaded = json.loads(source) if isinstance(source, str) and source.lstrip()[:1] in ("{", "[", '"') else source
        return fastavro.schema.parse_schema(loaded, names.types), names
    except json.JSONDecodeError as error:
        raise SchemaError(f"the Avro schema is not valid JSON: {error}") from error
    except (fastavro.schema.SchemaParseException, KeyError, TypeError, ValueError, AttributeError) as error:
        # UnknownType contains only the name.
        what = f"type {error.args[0]} is unknown" if type(error).__name__ == "UnknownType" else str(error)
        raise SchemaError(f"the Avro schema is not valid: {what}") from error


def parse_avro(source: str | AvroSchema, references: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the columns of an Avro record. Raises ``SchemaError`` with the path of a type without a column type."""
    schema, names = load_avro(source, references)
    root = names.resolve(schema)
    if not isinstance(root, dict) or root["type"] != "record":
        raise SchemaError("an Avro schema for columns must be a record: wrap it in a record with one field")
    return pa.schema(list(avro_type(root, names, "")))


def avro_type(schema: AvroSchema, names: AvroNames, path: str, within: tuple[str, ...] = ()) -> pa.DataType:
    """Return the column type of an Avro schema; ``path`` is for messages. Raises ``SchemaError``."""
    schema = names.resolve(schema)
    if isinstance(schema, list):
        return _union_type(schema, names, path, within)
    if isinstance(schema, str):
        return _primitive(schema, path)
    kind = schema["type"]
    if kind == "record":
        return _record_type(schema, names, path, within)
    if kind == "array":
        return pa.list_(_field("element", schema["items"], names, f"{path}.element", within))
    if kind == "map":
        return pa.map_(
            pa.field("key", pa.string(), nullable=False),
            _field("value", schema["values"], names, f"{path}.value", within),
        )
    return pa.string() if kind == "enum" else _annotated(kind, schema, path)


def _annotated(kind: str, schema: dict[str, Any], path: str) -> pa.DataType:
    """Return the type of an annotated primitive or fixed type; an unknown logical type is ignored."""
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema, path)
    if logical == "duration":
        raise SchemaError(
            f"{path}: Avro's duration counts months, which INTERVAL DAY TO SECOND cannot hold: use a long"
        )
    if (found := _LOGICAL.get((kind, str(logical)))) is not None:
        return found
    if kind == "fixed":
        return pa.binary()
    if kind == "long" and schema.get("spark.sql.catalyst.type") == "interval day to second":
        return DURATION
    if kind == "int" and schema.get("connect.type") in _CONNECT:
        return _CONNECT[schema["connect.type"]]
    return _primitive(kind, path)


def is_nullable(schema: AvroSchema) -> bool:
    """Return whether null is one of the alternatives."""
    return isinstance(schema, list) and "null" in schema


def _primitive(kind: str, path: str) -> pa.DataType:
    if kind == "null":
        raise SchemaError(f"{path}: a field that is always null has no type: leave it out, or make a union of it")
    return _PRIMITIVES[kind]


def _field(
    name: str, schema: AvroSchema, names: AvroNames, path: str, within: tuple[str, ...], doc: str = ""
) -> pa.Field:
    metadata = {"comment": doc} if doc else None
    return pa.field(name, avro_type(schema, names, path, within), is_nullable(names.resolve(schema)), metadata)


def _record_type(schema: dict[str, Any], names: AvroNames, path: str, within: tuple[str, ...]) -> pa.DataType:
    name = schema["name"]
    if name in within:
        raise SchemaError(
            f"{path}: record {name} contains itself, which column types cannot do: end the recursion, or keep it as "
            "bytes"
        )
    prefix = f"{path}." if path else ""
    fields = [
        _field(each["name"], each["type"], names, prefix + each["name"], (*within, name), each.get("doc", ""))
        for each in schema["fields"]
    ]
    if not fields:
        raise SchemaError(f"{path or name}: a record without fields cannot be stored: give it one, or leave it out")
    return pa.struct(fields)


def _decimal(schema: dict[str, Any], path: str) -> pa.DataType:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if not precision <= DECIMAL_MAX_PRECISION:
        raise SchemaError(f"{path}: a DECIMAL has at most {DECIMAL_MAX_PRECISION} digits, not {precision}")
    return pa.decimal128(precision, scale)


def _union_type(schemas: list[Any], names: AvroNames, path: str, within: tuple[str, ...]) -> pa.DataType:
    present = [each for each in schemas if each != "null"]
    if len(present) == 1:
        return avro_type(present[0], names, path, within)
    if set(map(str, present)) == {"int", "long"}:
        return pa.int64()
    if set(map(str, present)) == {"float", "double"}:
        return pa.float64()
    if not present:
        return _primitive("null", path)
    return pa.struct(
        [
            pa.field(f"member{number}", avro_type(each, names, f"{path}.member{number}", within))
            for number, each in enumerate(present)
        ]
    )


def to_avro(schema: pa.Schema, name: str = "Record", namespace: str = "") -> dict[str, Any]:
    """Write columns as an Avro record; ``parse_avro`` reads it back.

    Raises ``SchemaError`` with the path of a column that Avro does not support: an invalid Avro name, or a map whose
    keys are not strings. Times of day keep microseconds.
    """
    written = _written_record(list(schema), name, "")
    return {**written, "namespace": namespace} if namespace else written


def _written_record(fields: list[pa.Field], name: str, path: str) -> dict[str, Any]:
    prefix = f"{path}." if path else ""
    return {
        "type": "record",
        "name": _avro_name(name, path or name),
        "fields": [_written_field(field, name, prefix + field.name) for field in fields],
    }


def _written_field(field: pa.Field, record: str, path: str) -> dict[str, Any]:
    written: dict[str, Any] = {
        "name": _avro_name(field.name, path),
        "type": _written_nullable(field, f"{record}_{field.name}", path),
    }
    if field.nullable:
        written["default"] = None
    if (comment := comment_of(field)) is not None:
        written["doc"] = comment
    return written


def _written_nullable(field: pa.Field, name: str, path: str) -> AvroSchema:
    written = _written(field.type, name, path)
    return ["null", written] if field.nullable else written


def _written(data_type: pa.DataType, name: str, path: str) -> AvroSchema:
    if data_type in _WRITTEN:
        return _WRITTEN[data_type]
    if pat.is_decimal128(data_type):
        return {"type": "bytes", "logicalType": "decimal", "precision": data_type.precision, "scale": data_type.scale}
    if pat.is_struct(data_type):
        return _written_record(list(data_type), name, path)
    if pat.is_list(data_type):
        return {
            "type": "array",
            "items": _written_nullable(data_type.value_field, f"{name}_element", f"{path}.element"),
        }
    if pat.is_map(data_type):
        if data_type.key_type != pa.string():
            raise SchemaError(
                f"column {path}: keys of Avro's maps are text, not {spark_name(data_type.key_type)}: use an array of "
                "structs, or STRING keys"
            )
        return {"type": "map", "values": _written_nullable(data_type.item_field, f"{name}_value", f"{path}.value")}
    raise SchemaError(f"column {path}: {spark_name(data_type)} has no Avro type")


def _avro_name(name: str, path: str) -> str:
    if not _NAME.fullmatch(name):
        raise SchemaError(
            f"column {path}: {name!r} is not an Avro name: expected letters, digits and _, and no digit first"
        )
    return name
