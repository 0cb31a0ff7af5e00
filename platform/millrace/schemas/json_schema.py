"""Conversion between JSON Schemas and columns; ``docs/schemas.md`` has the table.

An object with ``properties`` is a schema or a struct; an object with only ``additionalProperties`` is a map. A
property is NOT NULL if it is ``required`` and not nullable. Formats give the type of strings. They are those of JSON
Schema 2020-12 and of the OpenAPI format registry (``int32``, ``float``, ``decimal``, ``date-time-local``,
``time-local``). ``connect.type`` is Kafka Connect's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat

from millrace.errors import SchemaError
from millrace.schemas.types import DURATION, TIME, TIMESTAMP, TIMESTAMP_NTZ, comment_of, spark_name

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

_WRITTEN: Final[dict[pa.DataType, dict[str, Any]]] = {
    pa.bool_(): {"type": "boolean"},
    pa.int8(): {"type": "integer", "connect.type": "int8"},
    pa.int16(): {"type": "integer", "connect.type": "int16"},
    pa.int32(): {"type": "integer", "format": "int32"},
    pa.int64(): {"type": "integer"},
    pa.float32(): {"type": "number", "format": "float"},
    pa.float64(): {"type": "number"},
    pa.string(): {"type": "string"},
    pa.binary(): {"type": "string", "contentEncoding": "base64"},
    pa.date32(): {"type": "string", "format": "date"},
    TIMESTAMP: {"type": "string", "format": "date-time"},
    TIMESTAMP_NTZ: {"type": "string", "format": "date-time-local"},
    TIME: {"type": "string", "format": "time-local"},
    DURATION: {"type": "string", "format": "duration"},
}

_INTEGERS: Final = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()}
_TEXTS: Final = {
    "date": pa.date32(),
    "date-time": TIMESTAMP,
    "date-time-local": TIMESTAMP_NTZ,
    "time-local": TIME,
    "duration": DURATION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Current place in a JSON Schema.

    ``path`` is for messages, ``documents`` are the referenced schemas, and ``within`` has the references followed so
    far.
    """

    root: Mapping[str, Any]
    documents: Mapping[str, str]
    path: str = ""
    within: tuple[str, ...] = field(default=())

    def down(self, name: str) -> _Place:
        return replace(self, path=f"{self.path}.{name}" if self.path else name)

    def refuse(self, what: str) -> SchemaError:
        return SchemaError(f"{self.path or 'the JSON Schema'}: {what}")


def parse_json_schema(source: str | Mapping[str, Any], references: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the columns of a JSON Schema of an object; ``references`` maps ``$ref`` to texts of other documents.

    Raises ``SchemaError`` with the path of a type without a column type.
    """
    try:
        root = json.loads(source) if isinstance(source, str) else source
    except json.JSONDecodeError as error:
        raise SchemaError(f"the JSON Schema is not valid JSON: {error}") from error
    if not isinstance(root, Mapping):
        raise SchemaError('a JSON Schema for columns must be an object: {"type": "object", "properties": {...}}')
    place = _Place(root=root, documents=references or {})
    data_type, _ = _type(root, place)
    if not pat.is_struct(data_type):
        raise SchemaError('a JSON Schema for columns must describe an object: {"type": "object", "properties": {...}}')
    return pa.schema(list(data_type))


def _type(schema: Any, place: _Place) -> tuple[pa.DataType, bool]:
    """Return the type of a schema's values, and whether null is one of them."""
    if not isinstance(schema, Mapping):
        raise place.refuse(f"{json.dumps(schema)} does not define a type: give one")
    if "$ref" in schema:
        target, there = _referred(schema["$ref"], place)
        return _type(target, there)
    for combination in ("oneOf", "anyOf"):
        if combination in schema:
            return _alternatives(schema[combination], combination, place)
    if "allOf" in schema:
        return _type(_merged(schema, place), place)
    kinds = schema.get("type", "object" if "properties" in schema else _kind_of_enum(schema))
    kinds = [kinds] if isinstance(kinds, str) else list(kinds or [])
    present = [kind for kind in kinds if kind != "null"]
    if set(present) == {"integer", "number"}:
        present = ["number"]
    if len(present) != 1:
        what = f"types {', '.join(present)} in one" if present else "no type"
        raise place.refuse(f"{what}, and a column has one: split it, or use text")
    return _single(present[0], schema, place), "null" in kinds


def _kind_of_enum(schema: Mapping[str, Any]) -> list[str]:
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return sorted({names.get(type(value), "object") for value in values})


def _single(kind: str, schema: Mapping[str, Any], place: _Place) -> pa.DataType:
    if kind == "boolean":
        return pa.bool_()
    if kind == "integer":
        return _INTEGERS.get(str(schema.get("connect.type", schema.get("format"))), pa.int64())
    if kind == "number":
        if schema.get("format") == "decimal":
            return _decimal(schema, place)
        return pa.float32() if "float" in (schema.get("format"), schema.get("connect.type")) else pa.float64()
    if kind == "string":
        if schema.get("contentEncoding") == "base64" or schema.get("format") == "byte":
            return pa.binary()
        if schema.get("format") == "decimal":
            return _decimal(schema, place)
        return _TEXTS.get(str(schema.get("format")), pa.string())
    if kind == "array":
        if "items" not in schema or isinstance(schema["items"], list):
            raise place.refuse("an array needs one schema of its items: give items, or use an object")
        data_type, nullable = _type(schema["items"], place.down("element"))
        return pa.list_(pa.field("element", data_type, nullable))
    if kind == "object":
        return _object(schema, place)
    raise place.refuse(f"type {kind!r} is unknown")


def _decimal(schema: Mapping[str, Any], place: _Place) -> pa.DataType:
    precision, scale = schema.get("precision"), schema.get("scale")
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision <= 38:
        raise place.refuse("format decimal needs precision (up to 38) and scale: give both")
    return pa.decimal128(precision, scale)


def _object(schema: Mapping[str, Any], place: _Place) -> pa.DataType:
    properties = schema.get("properties")
    if not properties:
        values = schema.get("additionalProperties")
        if not isinstance(values, Mapping):
            raise place.refuse("an object needs properties, or additionalProperties with the type of a map's values")
        data_type, nullable = _type(values, place.down("value"))
        return pa.map_(pa.string(), pa.field("value", data_type, nullable))
    required = set(schema.get("required", ()))
    fields = []
    for name, each in properties.items():
        data_type, nullable = _type(each, place.down(name))
        comment = each.get("description")
        metadata = {"comment": comment} if comment else None
        fields.append(pa.field(name, data_type, nullable or name not in required, metadata))
    return pa.struct(fields)


def _alternatives(schemas: list[Any], combination: str, place: _Place) -> tuple[pa.DataType, bool]:
    present = [each for each in schemas if each != {"type": "null"}]
    if len(present) != 1:
        raise place.refuse(
            f"{combination} of {len(present)} types: Spark has no unions; give one, or one property each"
        )
    data_type, nullable = _type(present[0], place)
    return data_type, nullable or len(present) < len(schemas)


def _merged(schema: Mapping[str, Any], place: _Place) -> dict[str, Any]:
    """Merge the schemas of ``allOf`` into one."""
    merged: dict[str, Any] = {name: value for name, value in schema.items() if name != "allOf"}
    for part in schema["allOf"]:
        if isinstance(part, Mapping) and "$ref" in part:
            part, _ = _referred(part["$ref"], place)
        if not isinstance(part, Mapping):
            raise place.refuse("allOf takes schemas")
        merged["properties"] = {**merged.get("properties", {}), **part.get("properties", {})}
        merged["required"] = [*merged.get("required", []), *part.get("required", [])]
        merged = {**part, **merged}
    return {name: value for name, value in merged.items() if value or name not in ("properties", "required")}


def _referred(reference: Any, place: _Place) -> tuple[Any, _Place]:
    if reference in place.within:
        raise place.refuse(f"{reference} contains itself, which column types cannot do: end the recursion, or use text")
    document, _, pointer = str(reference).partition("#")
    root: Any = place.root
    if document:
        if document not in place.documents:
            raise place.refuse(f"$ref {reference}: there is no such document: give it as a reference")
        root = json.loads(place.documents[document])
    found = root
    for step in pointer.strip("/").split("/") if pointer.strip("/") else []:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or step not in found:
            raise place.refuse(f"$ref {reference} points to nothing")
        found = found[step]
    return found, replace(place, root=root, within=(*place.within, reference))


def to_json_schema(schema: pa.Schema, title: str = "") -> dict[str, Any]:
    """Write columns as a JSON Schema of an object; ``parse_json_schema`` reads it back.

    Raises ``SchemaError`` with the path of a map whose keys are not strings.
    """
    heading = {"$schema": DRAFT, **({"title": title} if title else {})}
    return {**heading, **_written_object(list(schema), "")}


def _written_object(fields: list[pa.Field], path: str) -> dict[str, Any]:
    prefix = f"{path}." if path else ""
    properties = {}
    for each in fields:
        properties[each.name] = _written_field(each, prefix + each.name)
        if (comment := comment_of(each)) is not None:
            properties[each.name]["description"] = comment
    written: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [each.name for each in fields if not each.nullable]:
        written["required"] = required
    return written


def _written_field(each: pa.Field, path: str) -> dict[str, Any]:
    written = _written(each.type, path)
    return {**written, "type": [written["type"], "null"]} if each.nullable else dict(written)


def _written(data_type: pa.DataType, path: str) -> dict[str, Any]:
    if data_type in _WRITTEN:
        return _WRITTEN[data_type]
    if pat.is_decimal128(data_type):
        return {"type": "number", "format": "decimal", "precision": data_type.precision, "scale": data_type.scale}
    if pat.is_struct(data_type):
        return _written_object(list(data_type), path)
    if pat.is_list(data_type):
        return {"type": "array", "items": _written_field(data_type.value_field, f"{path}.element")}
    if pat.is_map(data_type):
        if data_type.key_type != pa.string():
            raise SchemaError(
                f"column {path}: names in JSON are text, not {spark_name(data_type.key_type)}: use an array of "
                "structs, or STRING keys"
            )
        return {"type": "object", "additionalProperties": _written_field(data_type.item_field, f"{path}.value")}
    raise SchemaError(f"column {path}: {spark_name(data_type)} has no JSON type")
