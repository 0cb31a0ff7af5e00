"""What a Delta log says about a data file: how many rows, and per column the smallest and largest value and the nulls.

Readers skip files by these, so a wrong bound loses rows and a missing one only costs time: where a bound could be
wrong it is left out. The bounds come from the Parquet file's own statistics, which its writer has made anyway.

Source: Delta transaction log protocol, "Per-file Statistics". Strings are cut to 32 characters and timestamps are in
milliseconds, each rounded outwards; binary, boolean, array and map columns have no bounds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
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
    """Which columns have statistics: those named, else the first ``count`` leaf columns (-1: all).

    As the table's properties ``delta.dataSkippingStatsColumns`` and ``delta.dataSkippingNumIndexedCols`` say it.
    """

    count: int = 32
    names: frozenset[str] | None = None

    def __contains__(self, leaf: tuple[int, Path]) -> bool:
        number, path = leaf
        if self.names is None:
            return self.count < 0 or number < self.count
        return any(".".join(path[:depth]) in self.names for depth in range(1, len(path) + 1))


def columns_with_nan(table: pa.Table) -> set[str]:
    """The columns that hold a NaN, which Spark takes as larger than any number and Parquet's statistics leave out."""
    return {
        field.name
        for field in table.schema
        if pa.types.is_floating(field.type) and pc.any(pc.is_nan(table.column(field.name))).as_py()
    }


def statistics_json(
    metadata: pq.FileMetaData, schema: pa.Schema, indexed: IndexedColumns, with_nan: Collection[str] = ()
) -> str:
    """The ``stats`` of an ``add`` action for a file of ``schema``; ``with_nan`` are its columns with a NaN."""
    minima: dict[str, Any] = {}
    maxima: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    row_groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for number, (path, data_type) in enumerate(_leaves(schema)):
        if path is None or (number, path) not in indexed:
            continue
        found = [group.column(number).statistics for group in row_groups]
        if not all(found):
            continue
        if all(each.has_null_count for each in found):
            _put(nulls, path, sum(each.null_count for each in found))
        # A row group of nulls alone has no bounds, and needs none.
        bounded = [each for each in found if each.num_values]
        if not bounded or not all(each.has_min_max for each in bounded):
            continue
        if pa.types.is_floating(data_type) and len(path) > 1:
            continue
        least, greatest = min(each.min_raw for each in bounded), max(each.max_raw for each in bounded)
        if _is_compared_decoded(data_type):
            least, greatest = min(each.min for each in bounded), max(each.max for each in bounded)
        if (bound := _lower(least, data_type)) is not None:
            _put(minima, path, bound)
        if path[0] not in with_nan and (bound := _upper(greatest, data_type)) is not None:
            _put(maxima, path, bound)
    return _text({"numRecords": metadata.num_rows, "minValues": minima, "maxValues": maxima, "nullCount": nulls})


def _leaves(schema: pa.Schema) -> Iterator[tuple[Path | None, pa.DataType]]:
    """Parquet's columns in order; those inside of arrays and maps without a path, for they have no statistics."""

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
    """Whether the order of the stored bytes or numbers is not that of the values."""
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
        # Not below any string that begins like this one, unless that goes on with the last character of all.
        return None if value[_PREFIX_CHARACTERS] == _LAST_CHARACTER else value[:_PREFIX_CHARACTERS] + _LAST_CHARACTER
    if pa.types.is_timestamp(data_type):
        return _instant(-(-value // 1000), data_type)
    return _exact(value, data_type)


def _exact(value: Any, data_type: pa.DataType) -> Any:
    """A bound that JSON can hold exactly; None when there is none."""
    if pa.types.is_date(data_type):
        return _day(value)
    if pa.types.is_floating(data_type):
        return value if math.isfinite(value) else None
    if pa.types.is_integer(data_type) or isinstance(value, Decimal):
        return value
    return None


def _day(days: int) -> str | None:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        return None


def _instant(milliseconds: int, data_type: pa.DataType) -> str | None:
    """ISO 8601 in milliseconds; in UTC, and without a zone for times that have none."""
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
    """JSON in which decimals are numbers with all their digits."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_text(item)}" for name, item in value.items()) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)
