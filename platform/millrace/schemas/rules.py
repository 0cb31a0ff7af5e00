"""Rules for a typed topic's schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from millrace.errors import SchemaError
from millrace.schemas.types import is_keyable, normalize_type, spark_name

COLUMNS_MAX: Final = 2000
NAME_BYTES_MAX: Final = 255
RESERVED_PREFIX: Final = "__"


def validate_topic_schema(schema: pa.Schema, key_columns: Sequence[str] = ()) -> None:
    """Check that a topic can have this schema and these key columns; the broker does so before it creates a topic.

    Names are compared without case, as in Spark. Raises ``SchemaError`` with the column.
    """
    if not 1 <= len(schema) <= COLUMNS_MAX:
        raise SchemaError(f"a typed topic has 1 to {COLUMNS_MAX} columns, not {len(schema)}")
    seen: dict[str, str] = {}
    for field in schema:
        _check_name(field.name)
        if (other := seen.get(field.name.lower())) is not None:
            raise SchemaError(
                f"columns {other} and {field.name} differ only in case, or not at all: rename one of them"
            )
        seen[field.name.lower()] = field.name
        stored = normalize_type(field.type, field.name)
        if not stored.equals(field.type):
            raise SchemaError(
                f"column {field.name}: Arrow type {field.type} is stored as {stored} ({spark_name(stored)}): "
                "use that type, or pass the schema through parse_schema"
            )
    _check_keys(schema, key_columns)


def _check_name(name: str) -> None:
    if not name:
        raise SchemaError("a column has an empty name: give it one")
    if name.startswith(RESERVED_PREFIX):
        raise SchemaError(f"column {name}: names that start with {RESERVED_PREFIX} are reserved: rename it")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise SchemaError(f"column {name[:40]}...: a name has at most {NAME_BYTES_MAX} bytes: shorten it")


def _check_keys(schema: pa.Schema, key_columns: Sequence[str]) -> None:
    for position, name in enumerate(key_columns):
        if schema.get_field_index(name) < 0:
            raise SchemaError(f"key column {name} is not in the schema: its columns are {', '.join(schema.names)}")
        if name in key_columns[:position]:
            raise SchemaError(f"key column {name} is named twice")
        data_type = schema.field(name).type
        if not is_keyable(data_type):
            raise SchemaError(
                f"key column {name}: {spark_name(data_type)} cannot be a key, as equal values may have different "
                "bytes: use whole numbers, decimals, strings, binary, booleans, dates or timestamps"
            )
