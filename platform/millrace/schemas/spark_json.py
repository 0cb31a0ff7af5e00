"""Schemas as JSON: Spark's ``StructType.json()``, and a simpler list of columns.

The simple form is ``{"columns": [{"name": "id", "type": "BIGINT", "nullable": false, "comment": "..."}]}`` or just
the list. ``type`` is DDL text or Spark's JSON of a type; ``nullable`` defaults to true.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from millrace.errors import SchemaError
from millrace.schemas.ddl import parse_ddl_type


def load_json(text: str) -> Any:
    """Parse a schema's JSON text. Raises ``SchemaError``."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise SchemaError(f"the schema is not valid JSON: {error}") from error


def parse_schema_json(source: str | dict[str, Any] | list[Any]) -> pa.Schema:
    """Read a schema from JSON text or from the result of ``json.loads``; raises ``SchemaError``."""
    if isinstance(source, str):
        source = load_json(source)
    if isinstance(source, dict) and source.get("type") == "struct":
        return pa.schema(_spark_fields(source))
    columns = source.get("columns") if isinstance(source, dict) else source
    if not isinstance(columns, list) or not columns:
        raise SchemaError(
            'a JSON schema is Spark\'s {"type": "struct", "fields": [...]} or {"columns": [{"name": ..., "type": ...}]}'
        )
    return pa.schema([_field(column) for column in columns])


def _field(column: Any) -> pa.Field:
    if not isinstance(column, dict) or not isinstance(column.get("name"), str) or "type" not in column:
        raise SchemaError(f'a column is {{"name": ..., "type": ..., "nullable": true}}, not {json.dumps(column)}')
    unknown = column.keys() - {"name", "type", "nullable", "comment", "metadata"}
    if unknown:
        raise SchemaError(f"column {column['name']}: unknown property {min(unknown)}")
    comment = column.get("comment") or (column.get("metadata") or {}).get("comment")
    nullable = column.get("nullable", True)
    if not isinstance(nullable, bool):
        raise SchemaError(f"column {column['name']}: nullable is true or false, not {json.dumps(nullable)}")
    try:
        data_type = _type(column["type"])
    except SchemaError as error:
        raise SchemaError(f"column {column['name']}: {error.message}") from None
    return pa.field(column["name"], data_type, nullable=nullable, metadata={"comment": comment} if comment else None)


def _spark_fields(struct: dict[str, Any]) -> list[pa.Field]:
    fields = struct.get("fields")
    if not isinstance(fields, list):
        raise SchemaError('Spark\'s JSON of a struct has "fields": [...]')
    return [_field(field) for field in fields]


def _type(source: Any) -> pa.DataType:
    if isinstance(source, str):
        return parse_ddl_type(source)
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "struct":
        return pa.struct(_spark_fields(source))
    if kind == "array":
        element = pa.field("element", _type(source.get("elementType")), nullable=source.get("containsNull", True))
        return pa.list_(element)
    if kind == "map":
        return pa.map_(
            pa.field("key", _type(source.get("keyType")), nullable=False),
            pa.field("value", _type(source.get("valueType")), nullable=source.get("valueContainsNull", True)),
        )
    if kind == "udt":
        return _type(source.get("sqlType"))
    raise SchemaError(f"{json.dumps(source)} is not a type: use DDL text or Spark's JSON of a type")
