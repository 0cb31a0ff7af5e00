"""Statistics of a data file for the Delta log.

They contain the number of rows, and by column the smallest value, the largest value and the number of nulls. Readers
skip files by these statistics. A wrong bound would lose rows, and a missing bound only costs time. A bound that could
be wrong is therefore left out. The bounds come from the statistics in the Parquet file, which the Parquet writer has
computed anyway.

Floating-point columns have no statistics in the Parquet file. Their bounds are computed here from the values. Spark
orders NaN above every number, but Parquet's statistics ignore NaN, so Spark would skip row groups that hold matching
rows.

Source: Delta transaction log protocol, "Per-file Statistics". Strings are cut to 32 characters and timestamps are in
milliseconds, each rounded outwards. Binary, boolean, array and map columns have no bounds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_PREFIX_CHARACTERS: Final = 32
_LAST_CHARACTER: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexedColumns:
    """Columns that have statistics.

    The columns are those in ``names``, or the first ``count`` leaf columns (-1: all). The table's properties
    ``delta.dataSkippingStatsColumns`` and ``delta.dataSkippingNumIndexedCols`` give them.
    """

    count: int = 32
    names: frozenset[str] | None = None

    def __contains__(self, leaf: tuple[int, Path]) -> bool:
        number, path = leaf
        if self.names is None:
            return self.count < 0 or number < self.count
        return any(".".join(path[:depth]) in self.names for depth in range(1, len(path) + 1))


@dataclass(slots=True)
class FloatBounds:
    """Nulls, bounds and NaN of a floating-point column over all rows added."""

    nulls: int = 0
    least: float = math.inf
    greatest: float = -math.inf
    has_nan: bool = False

    @classmethod
    def of(cls, schema: pa.Schema) -> dict[str, FloatBounds]:
        """Create one for each floating-point column; floating-point fields in structs have no statistics."""
        return {field.name: cls() for field in schema if pa.types.is_floating(field.type)}

    def add(self, column: pa.ChunkedArray) -> None:
        """Include the rows of ``column``."""
        found = pc.min_max(column).as_py()
        if found["min"] is not None and not math.isnan(found["min"]):
            self.least, self.greatest = min(self.least, found["min"]), max(self.greatest, found["max"])
        self.nulls += column.null_count
        self.has_nan = self.has_nan or bool(pc.any(pc.is_nan(column)).as_py())


def parquet_statistics(schema: pa.Schema) -> list[str]:
    """Return the columns with statistics in the Parquet file, by their names in Parquet."""
    return [
        ".".join(path)
        for path, data_type in _leaves(schema)
        if path is not None and not pa.types.is_floating(data_type)
    ]


def statistics_json(
    metadata: pq.FileMetaData, schema: pa.Schema, indexed: IndexedColumns, floats: Mapping[str, FloatBounds]
) -> str:
    """Return the ``stats`` of an ``add`` action for a file of ``schema``; ``floats`` must cover all of its rows."""
    minima: dict[str, Any] = {}
    maxima: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for number, (path, data_type) in enumerate(_leaves(schema)):
        if path is None or (number, path) not in indexed:
            continue
        if pa.types.is_floating(data_type):
            null_count, least, greatest = _of_floats(floats.get(path[0]) if len(path) == 1 else None)
        else:
            null_count, least, greatest = _of_parquet(metadata, number, data_type)
        for tree, value in ((nulls, null_count), (minima, least), (maxima, greatest)):
            if value is not None:
                _put(tree, path, value)
    return _text({"numRecords": metadata.num_rows, "minValues": minima, "maxValues": maxima, "nullCount": nulls})


def _of_floats(bounds: FloatBounds | None) -> tuple[Any, Any, Any]:
    """Return null count, smallest and largest value, each ``None`` if it is unknown or JSON cannot represent it."""
    if bounds is None:
        return None, None, None
    least = bounds.least if math.isfinite(bounds.least) else None
    greatest = bounds.greatest if math.isfinite(bounds.greatest) and not bounds.has_nan else None
    return bounds.nulls, least, greatest


def _of_parquet(metadata: pq.FileMetaData, number: int, data_type: pa.DataType) -> tuple[Any, Any, Any]:
    """Return null count, smallest and largest value of a column of another type, from all row groups."""
    found = [metadata.row_group(group).column(number).statistics for group in range(metadata.num_row_groups)]
    if not all(each is not None and each.has_null_count for each in found):
        return None, None, None
    null_count = sum(each.null_count for each in found)
    # A row group with only nulls has no bounds, and needs none.
    bounded = [each for each in found if each.num_values]
    if not bounded or not all(each.has_min_max for each in bounded):
        return null_count, None, None
    if _is_compared_decoded(data_type):
        least, greatest = min(each.min for each in bounded), max(each.max for each in bounded)
    else:
        least, greatest = min(each.min_raw for each in bounded), max(each.max_raw for each in bounded)
    return null_count, _lower(least, data_type), _upper(greatest, data_type)


def _leaves(schema: pa.Schema) -> Iterator[tuple[Path | None, pa.DataType]]:
    """Yield Parquet's columns in order. Columns inside arrays and maps have no path, because they have no
    statistics.
    """

    def of(data_type: pa.DataType, path: Path | None) -> Iterator[tuple[Path | None, pa.DataType]]:
        if pa.types.is_struct(data_type):
            for field in data_type:
                yield from of(field.type, None if path is None else (*path, field.name))
        elif pa.types.is_map(data_type):
            yield from of(data_type.key_type, None)
            yield from of(data_type.item_type, None)
        elif pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
            yield from of(data_type.value_type, None)
        else:
            yield path, data_type

    for field in schema:
        yield from of(field.type, (field.name,))


def _is_compared_decoded(data_type: pa.DataType) -> bool:
    """Return whether values must be decoded before they are compared, because their stored form has another order."""
    return bool(pa.types.is_decimal(data_type) or pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def _lower(value: Any, data_type: pa.DataType) -> Any:
    if isinstance(value, str):
        return value[:_PREFIX_CHARACTERS]
    if pa.types.is_timestamp(data_type):
        return _instant(value // 1000, data_type)
    return _exact(value, data_type)


def _upper(value: Any, data_type: pa.DataType) -> Any:
    if isinstance(value, str):
        if len(value) <= _PREFIX_CHARACTERS:
            return value
        # A bound above every string with this prefix. There is none if the next character is the largest of all.
        return None if value[_PREFIX_CHARACTERS] == _LAST_CHARACTER else value[:_PREFIX_CHARACTERS] + _LAST_CHARACTER
    if pa.types.is_timestamp(data_type):
        return _instant(-(-value // 1000), data_type)
    return _exact(value, data_type)


def _exact(value: Any, data_type: pa.DataType) -> Any:
    """Return a bound that JSON can represent exactly; ``None`` if there is none."""
    if pa.types.is_date(data_type):
        try:
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        except OverflowError:
            return None
    if pa.types.is_integer(data_type) or isinstance(value, Decimal):
        return value
    return None


def _instant(milliseconds: int, data_type: pa.DataType) -> str | None:
    """Format as ISO 8601 in milliseconds, in UTC; without a zone for a type without one."""
    try:
        text = (_EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    except OverflowError:
        return None
    return text.removesuffix("+00:00") + ("Z" if data_type.tz is not None else "")


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _text(value: Any) -> str:
    """Format as JSON in which decimals are numbers with all their digits."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_text(item)}" for name, item in value.items()) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)
