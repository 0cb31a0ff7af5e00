"""Conversion of single Python values to the form of their column.

A column of doubles returns 3.0 for 3, and a column of JSON returns a list for a tuple. A row has exactly the columns of
its layout. A fold converts each result before the next call. So a function cannot tell whether its aggregate was stored
in between. Common types are converted in Python, because a column of one cell takes a hundred times as long.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa

from millrace_streams.frames.evaluation import polars_schema
from millrace_streams.layout import WINDOW_COLUMNS, Layout
from millrace_streams.serdes import JSON, KeyArray, KeyObject, json_text, key_of_cell, key_of_json, serde_of_field
from millrace_streams.windows import Windowed

CellConversion: TypeAlias = Callable[[Any], Any]
ValueConversion: TypeAlias = Callable[[Any, Any], Any]
"""Conversion of the value of a key."""

_UTC: Final = ZoneInfo("UTC")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=_UTC)
_PYTHONS_LAST_MS: Final = (dt.datetime.max.replace(tzinfo=_UTC) - _EPOCH) // dt.timedelta(milliseconds=1)
_EXACT_TYPES: Final = {pa.string(): str, pa.binary(): bytes, pa.float64(): float, pa.bool_(): bool}
"""Types whose cells are all values of one Python type."""
_PYTHON_TYPES: Final = {**_EXACT_TYPES, pa.int32(): int, pa.int64(): int}
"""Types whose cells have one Python type."""
_JSON_SCALARS: Final = frozenset((str, int, bool, type(None)))
"""Types all of whose values JSON has, unlike ``float``."""
_JSON_KEYS: Final = _JSON_SCALARS | {KeyObject, KeyArray}
_TEXT: Final = frozenset((str,))


def exact_type(layout: Layout) -> type | None:
    """Return the Python type whose values a bare value's column gives back unchanged; None if no type suffices."""
    if not layout.value:
        return None
    return _exact_type(layout.schema.field(layout.value))


def are_exact(column: pa.Field, cells: list[Any]) -> bool:
    """Return whether a column gives cells back unchanged, as far as their types tell. They must fit it."""
    if column.metadata:
        return serde_of_field(column).name == JSON.name and all(map(_is_exact_json, cells))
    python_type = _PYTHON_TYPES.get(column.type)
    return python_type is not None and set(map(type, cells)) <= {python_type, type(None)}


def are_exact_keys(column: pa.Field, cells: list[Any]) -> bool:
    """Return whether a key's column gives cells back unchanged, see ``are_exact``."""
    if column.metadata and serde_of_field(column).name == JSON.name:
        return _JSON_KEYS.issuperset(map(type, cells))
    return are_exact(column, cells)


def _is_exact_json(value: Any) -> bool:
    """Return whether a value's text in JSON gives it back: objects are dicts with text as keys, arrays are lists."""
    kind = type(value)
    if kind is dict:
        return _TEXT.issuperset(map(type, value)) and _are_exact_json(value.values())
    if kind is float:
        return math.isfinite(value)
    return kind in _JSON_SCALARS or (kind is list and _are_exact_json(value))


def _are_exact_json(values: Collection[Any]) -> bool:
    return _JSON_SCALARS.issuperset(map(type, values)) or all(map(_is_exact_json, values))


def value_conversion(layout: Layout) -> ValueConversion:
    """Return the conversion of the layout's values, which are not None, to those that its columns give back.

    It raises ``TypeError``, ``ValueError``, ``KeyError``, ``OverflowError`` or polars' errors for other values.
    """
    if layout.value is None:
        return _row_conversion(layout)
    if not layout.value:
        return lambda key, value: value
    convert = cell_conversion(layout.schema.field(layout.value))
    return lambda key, value: convert(value)


def key_conversion(layout: Layout) -> CellConversion:
    """Return the conversion of keys, which are not None, to those that the key columns give back; all are hashable.

    It raises as ``value_conversion`` does.
    """
    parts = [_key_part_conversion(layout.schema.field(name)) for name in layout.key]
    if len(parts) == 1:
        [bare] = parts
    else:

        def bare(key: Any) -> Any:
            return tuple(None if part is None else convert(part) for convert, part in zip(parts, key, strict=True))

    if not layout.windowed:
        return bare
    return lambda key: Windowed(None if key.key is None else bare(key.key), key.start, key.end)


def lookup_conversion(layout: Layout) -> CellConversion:
    """Return the conversion of keys without windows, by which users look entries up; None stays None."""
    convert = key_conversion(replace(layout, windowed=False))
    return lambda key: None if key is None else convert(key)


def _key_part_conversion(column: pa.Field) -> CellConversion:
    if column.metadata and serde_of_field(column).name == JSON.name:
        return lambda key: key if type(key) in _JSON_KEYS else key_of_json(json_text(key))
    convert = cell_conversion(column)
    return (lambda key: key_of_cell(convert(key))) if pa.types.is_nested(column.type) else convert


def cell_conversion(column: pa.Field) -> CellConversion:
    """Return the conversion of a column's values, which are not None; see ``value_conversion``."""
    serde = serde_of_field(column)
    if serde.name == JSON.name:
        return _json
    if serde.to_column is not None and serde.from_column is not None:
        encode, decode = serde.to_column, serde.from_column
        return lambda value: decode(encode(value))
    return _of_type(column.type)


def _of_type(data_type: pa.DataType) -> CellConversion:
    by_column = _by_column(data_type)
    if data_type in _EXACT_TYPES:
        exact = _EXACT_TYPES[data_type]
        if exact is float:
            return lambda value: float(value) if isinstance(value, float | int) else by_column(value)
        return lambda value: value if type(value) is exact else by_column(value)
    if pa.types.is_integer(data_type):
        return _whole_number(data_type, by_column)
    if pa.types.is_decimal(data_type):
        scale = -data_type.scale
        return lambda value: (
            value if type(value) is Decimal and value.as_tuple().exponent == scale else by_column(value)
        )
    if pa.types.is_date(data_type):
        return lambda value: value if type(value) is dt.date else by_column(value)
    if data_type in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):
        zone = None if data_type.tz is None else _UTC
        return lambda value: (
            value if type(value) is dt.datetime and value.tzinfo is zone and not value.fold else by_column(value)
        )
    if pa.types.is_nested(data_type):
        is_exact = _exactness(data_type)
        return lambda value: value if is_exact(value) else by_column(value)
    return by_column


def _by_column(data_type: pa.DataType) -> CellConversion:
    polars_type = polars_schema(pa.schema([("cell", data_type)]))["cell"]

    def convert(value: Any) -> Any:
        cells = pl.Series("cell", [value], dtype=polars_type, strict=True)
        if cells.dtype != polars_type:
            raise TypeError(f"it is of {cells.dtype}")
        return cells.to_list()[0]

    return convert


def _exactness(data_type: pa.DataType) -> Callable[[Any], bool]:
    """Return a function that tells whether a value in a list or struct is exactly as a column gives it back."""
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        is_exact_element = _exactness(data_type.value_type)
        return lambda value: value is None or (type(value) is list and all(map(is_exact_element, value)))
    if pa.types.is_struct(data_type):
        fields = [(field.name, _exactness(field.type)) for field in data_type]
        names = [field.name for field in data_type]
        return lambda value: (
            value is None
            or (
                type(value) is dict and list(value) == names and all(is_exact(value[name]) for name, is_exact in fields)
            )
        )
    exact, high = _exact_cells(pa.field("", data_type))
    return lambda value: value is None or (type(value) is exact and (high is None or -high <= value <= high))


def _whole_number(data_type: pa.DataType, by_column: CellConversion) -> CellConversion:
    is_signed = pa.types.is_signed_integer(data_type)
    low = -(2 ** (data_type.bit_width - 1)) if is_signed else 0
    high = 2 ** (data_type.bit_width - is_signed) - 1

    def convert(value: Any) -> Any:
        if type(value) is int and low <= value <= high:
            return value
        return int(value) if isinstance(value, int) and low <= value <= high else by_column(value)

    return convert


def _json(value: Any) -> Any:
    assert JSON.to_column is not None
    assert JSON.from_column is not None
    return value if _is_exact_json(value) else JSON.from_column(JSON.to_column(value))


def _row_conversion(layout: Layout) -> ValueConversion:
    # The order of columns is the layout's, so that two equal rows also look alike.
    template: dict[str, Any] = dict.fromkeys(layout.names)
    columns = [layout.schema.field(name) for name in layout.value_columns]
    cells = [(column.name, *_exact_cells(column), cell_conversion(column)) for column in columns]
    single = layout.key[0] if len(layout.key) == 1 and not layout.windowed else None
    key_cells = _key_cells(layout)

    def convert(key: Any, value: Any) -> dict[str, Any]:
        row = template.copy()
        if single is None:
            row.update(key_cells(key))
        else:
            row[single] = key
        for name, exact, high, convert_cell in cells:
            cell = value[name]
            if not (type(cell) is exact and (high is None or -high <= cell <= high)) and cell is not None:
                cell = convert_cell(cell)
            row[name] = cell
        return row

    return convert


def _exact_cells(column: pa.Field) -> tuple[type[Any] | None, int | None]:
    """Return the type of cells that a column gives back unchanged, and a limit of whole numbers."""
    if not column.metadata and pa.types.is_signed_integer(column.type):
        return int, 2 ** (column.type.bit_width - 1) - 1
    return _exact_type(column), None


def _exact_type(column: pa.Field) -> type | None:
    return None if column.metadata else _EXACT_TYPES.get(column.type)


def _key_cells(layout: Layout) -> Callable[[Any], Iterable[tuple[str, Any]]]:
    """Return a function from a key to names and cells of a row's key columns."""
    names, single = layout.key, layout.key[0] if len(layout.key) == 1 else None
    if layout.windowed:
        all_names = (*names, *WINDOW_COLUMNS)

        def windowed(key: Windowed) -> Iterable[tuple[str, Any]]:
            parts = key.key if single is None else (key.key,)
            return zip(all_names, (*parts, _instant(key.start), _instant(key.end)), strict=True)

        return windowed
    if single is None:
        return lambda key: zip(names, key, strict=True)
    return lambda key: ((single, key),)


def _instant(time_ms: int) -> dt.datetime | None:
    """Return an instant, None after the year 9999."""
    return _EPOCH + dt.timedelta(milliseconds=time_ms) if time_ms <= _PYTHONS_LAST_MS else None
