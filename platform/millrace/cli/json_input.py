"""Conversion of JSON lines to tables for typed or opaque topics."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import json as arrow_json

from millrace.errors import SchemaMismatchError
from millrace.records import NO_TIMESTAMP, headers_array
from millrace.schemas import spark_name

_RECORD_FIELDS = {"key", "value", "headers", "timestamp", "partition"}
_PRINTED_FIELDS = {"topic", "offset"}
"""Fields that ``consume`` prints but that a send determines again."""


def typed_json_table(data: bytes, schema: pa.Schema, first_line: int) -> pa.Table:
    """Parse objects with the columns of ``schema``; raises ``SchemaMismatchError`` naming line and column.

    Arrow's parser is used if possible. Types that it does not support (maps, binary, intervals), and errors, are
    handled by a Python parser, which knows line numbers.
    """
    # Arrow's parser takes null for a row of nulls, and takes several objects of one line. It crashes if all are null.
    lines = [line for line in map(bytes.lstrip, data.splitlines()) if line]
    is_objects = all(line.startswith(b"{") for line in lines)
    if lines and is_objects and all(_arrow_reads(field.type) for field in schema):
        try:
            table = _read_with_arrow(data, schema)
            has_wrong_nulls = any(table.column(field.name).null_count for field in schema if not field.nullable)
            if table.num_rows == len(lines) and not has_wrong_nulls:
                return table
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # Arrow's message names neither column nor line, so the other parser finds them.
            pass
    return _read_with_python(data, schema, first_line)


def _arrow_reads(data_type: pa.DataType) -> bool:
    return not (pat.is_nested(data_type) or pat.is_binary(data_type) or pat.is_duration(data_type))


def _read_with_arrow(data: bytes, schema: pa.Schema) -> pa.Table:
    as_text = pa.schema([pa.field(field.name, _text_type(field.type)) for field in schema])
    table = arrow_json.read_json(
        pa.BufferReader(data),  # no Python file, because Arrow's threads could use it when the process ends
        parse_options=arrow_json.ParseOptions(explicit_schema=as_text, unexpected_field_behavior="error"),
        read_options=arrow_json.ReadOptions(block_size=max(len(data), 1)),
    )
    return table.cast(pa.schema([pa.field(field.name, field.type) for field in schema]))


def _text_type(data_type: pa.DataType) -> pa.DataType:
    return pa.string() if pat.is_date(data_type) or pat.is_time(data_type) else data_type


def _read_with_python(data: bytes, schema: pa.Schema, first_line: int) -> pa.Table:
    columns: dict[str, list[Any]] = {field.name: [] for field in schema}
    numbers: list[int] = []
    for number, line in enumerate(data.splitlines(), start=first_line):
        if not line.strip():
            continue
        fields = _object(line, number)
        for name in fields:
            if name not in columns:
                raise SchemaMismatchError(
                    f"line {number}: column {name} is not in the topic's schema: its columns are {', '.join(columns)}"
                )
        for field in schema:
            columns[field.name].append(_converted(fields.get(field.name), field.type, f"line {number}: {field.name}"))
        numbers.append(number)
    arrays = [_column(field, columns[field.name], numbers) for field in schema]
    return pa.Table.from_arrays(arrays, names=schema.names)


def _object(line: bytes, number: int) -> dict[str, Any]:
    try:
        fields = json.loads(line, parse_float=Decimal)
    except ValueError as error:
        raise SchemaMismatchError(f"line {number} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise SchemaMismatchError(f"line {number}: a record of a typed topic is an object with its columns")
    return fields


def _column(field: pa.Field, values: list[Any], numbers: list[int]) -> pa.Array:
    if not field.nullable and None in values:
        number = numbers[values.index(None)]
        raise SchemaMismatchError(f"line {number}: column {field.name} is missing or null, but it is NOT NULL")
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for value, number in zip(values, numbers, strict=True):
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise SchemaMismatchError(
                    f"line {number}: column {field.name}: {value!r} is not a valid {spark_name(field.type)}: {error}"
                ) from error
        raise


def _converted(value: Any, data_type: pa.DataType, where: str) -> Any:
    """Convert a JSON value to Python's for an Arrow type: the inverse of the output of ``consume``."""
    if value is None:
        return None
    try:
        if pat.is_struct(data_type):
            return {field.name: _converted(value.get(field.name), field.type, where) for field in data_type}
        if pat.is_list(data_type):
            return [_converted(item, data_type.value_type, where) for item in value]
        if pat.is_map(data_type):
            pairs = value.items() if isinstance(value, dict) else value
            return [
                (_converted(key, data_type.key_type, where), _converted(item, data_type.item_type, where))
                for key, item in pairs
            ]
        return _scalar(value, data_type)
    except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise SchemaMismatchError(f"{where}: {value!r} is not a valid {spark_name(data_type)}: {error}") from error


def _scalar(value: Any, data_type: pa.DataType) -> Any:
    for matches, convert in _CONVERSIONS:
        if matches(data_type):
            return convert(value)
    if isinstance(value, Decimal):
        if pat.is_floating(data_type):
            return float(value)
        if value != int(value):
            raise ValueError(f"{value} is not a whole number")
        return int(value)
    return value


def _instant(value: str) -> datetime:
    when = datetime.fromisoformat(value)
    return when if when.tzinfo else when.replace(tzinfo=UTC)


_CONVERSIONS: Final[list[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]]] = [
    (lambda data_type: pat.is_timestamp(data_type) and data_type.tz is not None, _instant),
    (pat.is_timestamp, datetime.fromisoformat),
    (pat.is_date, date.fromisoformat),
    (pat.is_time, time.fromisoformat),
    (pat.is_duration, lambda value: timedelta(seconds=float(value))),
    (pat.is_decimal, lambda value: Decimal(str(value))),
    (pat.is_binary, lambda value: base64.b64decode(value, validate=True)),
]


def opaque_json_table(data: bytes, first_line: int) -> pa.Table:
    """Parse records in the output format of ``consume --format json``.

    Raises ``SchemaMismatchError``, which names the line.
    """
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
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
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
        raise SchemaMismatchError(
            f"line {number}: unknown field {min(unknown)}: the fields are {', '.join(_RECORD_FIELDS)}"
        )
    timestamp = fields.get("timestamp")
    return {
        "key": _bytes(fields.get("key"), number),
        "value": _bytes(fields["value"], number),
        "headers": _headers(fields.get("headers"), number),
        "timestamp": None if timestamp == NO_TIMESTAMP else timestamp,
        "partition": fields.get("partition"),
    }


def _headers(headers: Any, number: int) -> list[tuple[str, bytes | None]]:
    """Convert an object, or an array of pairs. Names may repeat in the latter."""
    pairs = list(headers.items()) if isinstance(headers, dict) else headers or []
    if not isinstance(pairs, list) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise SchemaMismatchError(
            f'line {number}: headers are an object {{"name": value}} or an array [["name", value]], not '
            f"{json.dumps(headers)}"
        )
    for name, _ in pairs:
        _bytes(name, number)  # refuses a name that has no UTF-8
    return [(name, _bytes(value, number)) for name, value in pairs]


def _bytes(value: Any, number: int) -> bytes | None:
    """Convert text to UTF-8, ``{"base64": ...}`` to its bytes, and other JSON to its text."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"base64"}:
            return base64.b64decode(value["base64"], validate=True)
        return json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, TypeError) as error:
        raise SchemaMismatchError(f"line {number}: {error}") from error
