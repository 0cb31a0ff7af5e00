"""JSON lines to tables: columns of a typed topic, or the records of an opaque one as ``consume`` prints them."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pyarrow as pa
from pyarrow import json as arrow_json

from millrace.errors import SchemaMismatchError
from millrace.records import headers_array

_RECORD_FIELDS = {"key", "value", "headers", "timestamp", "partition"}
_PRINTED_FIELDS = {"topic", "offset"}
"""What ``consume`` prints and sending decides anew."""


def typed_json_table(data: bytes, schema: pa.Schema, first_line: int) -> pa.Table:
    """Parse objects with the columns of ``schema``; raises ``SchemaMismatchError`` for others."""
    options = arrow_json.ParseOptions(explicit_schema=_readable(schema), unexpected_field_behavior="error")
    try:
        table = arrow_json.read_json(
            io.BytesIO(data), parse_options=options, read_options=arrow_json.ReadOptions(block_size=max(len(data), 1))
        )
        return table.cast(pa.schema([_field(schema, name) for name in table.column_names]))
    except pa.ArrowInvalid as error:
        raise SchemaMismatchError(f"in the lines from {first_line} on (rows count from 0): {error}") from error


def _field(schema: pa.Schema, name: str) -> pa.Field:
    # Nullable here: a missing value is found, and its row named, when the table is fitted to the topic.
    return schema.field(name).with_nullable(True)


def _readable(schema: pa.Schema) -> pa.Schema:
    """Arrow reads JSON text into neither binary nor zoned nor 64-bit times of every unit: those are cast afterwards."""
    return pa.schema([_field(schema, name) for name in schema.names])


def opaque_json_table(data: bytes, first_line: int) -> pa.Table:
    """Parse records as ``consume --format json`` prints them; raises ``SchemaMismatchError`` naming the line."""
    records = []
    for number, line in enumerate(data.splitlines(), start=first_line):
        if line.strip():
            records.append(_record(line, number))
    columns: dict[str, Any] = {"value": pa.array([record["value"] for record in records], pa.binary())}
    if any(record["key"] is not None for record in records):
        columns["key"] = pa.array([record["key"] for record in records], pa.binary())
    if any(record["headers"] for record in records):
        columns["headers"] = headers_array([record["headers"] for record in records])
    for name, type_ in (("timestamp", pa.int64()), ("partition", pa.int32())):
        if any(record[name] is not None for record in records):
            try:
                columns[name] = pa.array([record[name] for record in records], type_)
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise SchemaMismatchError(f"{name} in the lines from {first_line} on: {error}") from error
    return pa.table(columns)


def _record(line: bytes, number: int) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise SchemaMismatchError(f"line {number} is not JSON: {error}") from error
    if not isinstance(fields, dict) or "value" not in fields:
        raise SchemaMismatchError(
            f'line {number}: a record of an opaque topic is {{"key": ..., "value": ...}}; to send the line itself as '
            "value, use --format lines"
        )
    unknown = fields.keys() - _RECORD_FIELDS - _PRINTED_FIELDS
    if unknown:
        raise SchemaMismatchError(f"line {number}: unknown field {min(unknown)}, known are {', '.join(_RECORD_FIELDS)}")
    headers = fields.get("headers") or {}
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {
        "key": _bytes(fields.get("key"), number),
        "value": _bytes(fields["value"], number),
        "headers": [(name, _bytes(value, number)) for name, value in pairs],
        "timestamp": fields.get("timestamp"),
        "partition": fields.get("partition"),
    }


def _bytes(value: Any, number: int) -> bytes | None:
    """Text as UTF-8, ``{"base64": ...}`` decoded, other JSON as its text."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (ValueError, TypeError) as error:
            raise SchemaMismatchError(f"line {number}: {error}") from error
    return json.dumps(value, ensure_ascii=False).encode()
