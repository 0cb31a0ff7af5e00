"""Partition values of rows, as text for the Delta log.

The module also groups rows by their partition values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.errors import UsageError

Values = Mapping[str, str | None]
"""Partition column to value, as text; ``None`` is null."""

_ROW: Final = "__row"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")
_NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"
_BYTES_PER_NAME_MAX: Final = 120


def check_partition_columns(schema: pa.Schema, names: Sequence[str]) -> None:
    """Raise ``UsageError`` for columns that do not exist or cannot partition a table, or if no other column remains."""
    for name in names:
        if name not in schema.names:
            raise UsageError(f"partition column {name}: the columns are {', '.join(schema.names)}")
        if not _has_text(data_type := schema.field(name).type):
            raise UsageError(
                f"partition column {name}: a direct ingest partitions by text, numbers, booleans, dates and times, not "
                f"by {data_type}: let Spark write this table"
            )
    if len(set(names)) != len(names):
        raise UsageError(f"partition columns {', '.join(names)}: name each once")
    if len(names) >= len(schema):
        raise UsageError("every column is a partition column: leave one to store at least")


def split_by_values(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[Values, pa.Table]]:
    """Yield each combination of partition values with its rows, in their order and without the partition columns."""
    if not names:
        yield {}, table
        return
    rows = pa.array(np.arange(table.num_rows, dtype=np.int64))
    keys = table.select(names).append_column(_ROW, rows)
    groups = keys.group_by(list(names), use_threads=False).aggregate([(_ROW, "list")])
    stored = table.drop_columns(list(names))
    merged: dict[tuple[str | None, ...], list[pa.Array]] = {}
    for number, group in enumerate(groups.select(names).to_pylist()):
        # Every reader of Delta takes an empty string for null.
        values = tuple(_text(group[name]) or None for name in names)
        merged.setdefault(values, []).append(groups.column(f"{_ROW}_list")[number].values)
    for values, pieces in merged.items():
        chosen = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces).sort()
        yield dict(zip(names, values, strict=True)), stored.take(chosen)


def directory_of(values: Values) -> str:
    """Return the directory of files with these values, such as ``day=2026-01-31/``.

    Its name is for people only, because readers take the values from the log.
    """
    return "".join(
        f"{_safe(name)}={_NULL_DIRECTORY if value is None else _safe(value)}/" for name, value in values.items()
    )


def _has_text(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(data_type)
        or types.is_integer(data_type)
        or types.is_boolean(data_type)
        or types.is_date(data_type)
        or types.is_timestamp(data_type)
        or types.is_decimal(data_type)
        or types.is_floating(data_type)
    )


def _text(value: Any) -> str | None:
    """Format a value by the protocol (Delta protocol, "Partition Value Serialization"); numbers as Java parses them."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case datetime(tzinfo=None):
            return f"{value:%Y-%m-%d %H:%M:%S.%f}"
        case datetime():
            # This form means the same to every reader; the other form depends on the reader's time zone.
            return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        case Decimal():
            return f"{value:f}"
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case _:
            return str(value)


def _safe(text: str) -> str:
    """Replace all characters that a path, a URI or a file system could interpret, and cut the name to a safe length."""
    return _UNSAFE.sub("_", text)[:_BYTES_PER_NAME_MAX]
