"""Stored Arrow types of typed topics, exactly one for each Spark type.

Spark therefore reads batches without conversion. The table is in ``docs/schemas.md``. Equivalent Arrow types are
normalised to these when a schema is parsed, and their data is cast when it is sent. Equivalent are large and view
layouts, dictionaries, other time units and unsigned integers. A type without a Spark counterpart is refused with the
column's name and a remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.types as pat

from millrace.errors import SchemaError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
DURATION: Final = pa.duration("us")
TIME: Final = pa.time64("ns")
DECIMAL_MAX_PRECISION: Final = 38

_SPARK_NAMES: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
    DURATION: "INTERVAL DAY TO SECOND",
    TIME: "TIME",
}

# Stored types for types of another layout or unit: the smallest stored type that holds every value.
_STORED_AS: Final[list[tuple[Callable[[pa.DataType], bool], pa.DataType]]] = [
    (pat.is_large_string, pa.string()),
    (pat.is_string_view, pa.string()),
    (pat.is_large_binary, pa.binary()),
    (pat.is_binary_view, pa.binary()),
    (pat.is_fixed_size_binary, pa.binary()),
    (pat.is_uint8, pa.int16()),
    (pat.is_uint16, pa.int32()),
    (pat.is_uint32, pa.int64()),
    (pat.is_uint64, pa.decimal128(20, 0)),
    (pat.is_float16, pa.float32()),
    (pat.is_date64, pa.date32()),
    (pat.is_time, TIME),
    (pat.is_duration, DURATION),
]

_REMEDIES: Final[list[tuple[Callable[[pa.DataType], bool], str]]] = [
    (pat.is_null, "it has no values to tell its type by: cast it, or name the type in the schema"),
    (pat.is_union, "Spark has no unions: use a struct with one nullable field for each alternative"),
    (pat.is_interval, "store months as INT and the rest as INTERVAL DAY TO SECOND"),
    (pat.is_decimal256, f"a DECIMAL has at most {DECIMAL_MAX_PRECISION} digits: use DOUBLE or STRING"),
    (pat.is_list_view, "cast it to a list"),
    (pat.is_large_list_view, "cast it to a list"),
]

_KEYABLE: Final = {
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.date32(),
    TIMESTAMP, TIMESTAMP_NTZ, DURATION, TIME,
}  # fmt: skip


def normalize_schema(schema: pa.Schema) -> pa.Schema:
    """Normalise every column to its stored type; keeps nullability and comments, drops other metadata.

    Raises ``SchemaError`` with the first column whose type has no Spark counterpart.
    """
    return pa.schema([_normalize_field(field, field.name) for field in schema])


def normalize_type(data_type: pa.DataType, column: str) -> pa.DataType:
    """Return the stored type of ``data_type``; ``column`` is the path that an error names (``a.b.element``).

    Raises ``SchemaError`` for a type without a Spark counterpart.
    """
    if data_type in _SPARK_NAMES:
        return data_type
    if pat.is_dictionary(data_type) or pat.is_run_end_encoded(data_type):
        return normalize_type(data_type.value_type, column)
    if pat.is_timestamp(data_type):
        return TIMESTAMP if data_type.tz else TIMESTAMP_NTZ
    if pat.is_decimal(data_type) and data_type.precision <= DECIMAL_MAX_PRECISION:
        return _normalize_decimal(data_type, column)
    if pat.is_list(data_type) or pat.is_large_list(data_type) or pat.is_fixed_size_list(data_type):
        element = data_type.value_field
        return pa.list_(_normalize_field(element.with_name("element"), f"{column}.element"))
    if pat.is_map(data_type):
        return pa.map_(
            _normalize_field(data_type.key_field.with_name("key"), f"{column}.key"),
            _normalize_field(data_type.item_field.with_name("value"), f"{column}.value"),
        )
    if pat.is_struct(data_type):
        return _normalize_struct(data_type, column)
    for matches, stored in _STORED_AS:
        if matches(data_type):
            return stored
    remedies = (remedy for matches, remedy in _REMEDIES if matches(data_type))
    remedy = next(remedies, "cast it to one of the types in docs/schemas.md")
    raise SchemaError(f"column {column}: Arrow type {data_type} cannot be stored: {remedy}")


def _normalize_field(field: pa.Field, path: str) -> pa.Field:
    comment = comment_of(field)
    metadata = {"comment": comment} if comment else None
    return pa.field(field.name, normalize_type(field.type, path), nullable=field.nullable, metadata=metadata)


def _normalize_decimal(data_type: pa.DataType, column: str) -> pa.DataType:
    if not 0 <= data_type.scale <= data_type.precision:
        raise SchemaError(
            f"column {column}: {data_type} has a scale outside 0..{data_type.precision}: "
            "cast it to a decimal whose scale is between 0 and its precision"
        )
    return pa.decimal128(data_type.precision, data_type.scale)


def _normalize_struct(data_type: pa.DataType, column: str) -> pa.DataType:
    names = [field.name for field in data_type]
    if not names:
        raise SchemaError(f"column {column}: a struct without fields cannot be stored: give it one, or drop the column")
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise SchemaError(f"column {column}: field {min(repeated)} occurs twice in the struct: rename one of them")
    return pa.struct([_normalize_field(field, f"{column}.{field.name}") for field in data_type])


def comment_of(field: pa.Field) -> str | None:
    """Return the comment of a column, from DDL or JSON."""
    comment = (field.metadata or {}).get(b"comment")
    return comment.decode() if comment is not None else None


def is_keyable(data_type: pa.DataType) -> bool:
    """Return whether a type is allowed for keys: equal values have equal bytes, unlike floats and nested types."""
    return data_type in _KEYABLE or pat.is_decimal128(data_type)


def spark_name(data_type: pa.DataType) -> str:
    """Return Spark's DDL name of a stored type (``ARRAY<INT>``), or Arrow's name of another type.

    Spark's DDL does not include the nullability of array elements and map values.
    """
    if (name := _SPARK_NAMES.get(data_type)) is not None:
        return name
    if pat.is_decimal128(data_type):
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if pat.is_list(data_type):
        return f"ARRAY<{spark_name(data_type.value_type)}>"
    if pat.is_map(data_type):
        return f"MAP<{spark_name(data_type.key_type)}, {spark_name(data_type.item_type)}>"
    if pat.is_struct(data_type):
        return f"STRUCT<{', '.join(field_ddl(field, separator=': ') for field in data_type)}>"
    return str(data_type)


def field_ddl(field: pa.Field, *, separator: str = " ") -> str:
    """Return one column in Spark's DDL: name, type, ``NOT NULL``, comment."""
    text = f"{quote_name(field.name)}{separator}{spark_name(field.type)}"
    if not field.nullable:
        text += " NOT NULL"
    if (comment := comment_of(field)) is not None:
        escaped = comment.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
        text += f" COMMENT '{escaped}'"
    return text


def quote_name(name: str) -> str:
    """Return a column name, in backticks if DDL needs them."""
    plain = name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit()
    return name if plain else "`" + name.replace("`", "``") + "`"
