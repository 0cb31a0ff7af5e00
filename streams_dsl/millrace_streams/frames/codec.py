"""Conversion between columns and Python objects: keys and values of a layout."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from millrace_streams.frames.cells import are_exact
from millrace_streams.frames.evaluation import polars_schema
from millrace_streams.layout import WINDOW_END, WINDOW_START, Layout
from millrace_streams.serdes import key_of_cell, serde_of_field
from millrace_streams.windows import FOREVER_MS, LAST_INSTANT_MS, Windowed

_PYTHONS_LAST: Final = dt.datetime.max.replace(tzinfo=dt.UTC)
_START: Final = "start"
_END: Final = "end"


def keys_of(layout: Layout, frame: pl.DataFrame) -> list[Any]:
    """Return the keys of a frame's rows: bare, tuples or ``Windowed``; None if all key columns are null."""
    if not layout.key:
        return [None] * frame.height
    columns = [key_cells(layout.schema.field(name), frame[name]) for name in layout.key]
    if len(columns) == 1:
        [keys] = columns
    else:
        keys = [None if all(part is None for part in key) else key for key in zip(*columns, strict=True)]
    if not layout.windowed:
        return keys
    starts = frame[WINDOW_START].dt.timestamp("ms").to_list()
    ends = frame[WINDOW_END].dt.timestamp("ms").fill_null(FOREVER_MS).to_list()
    return [Windowed(*parts) for parts in zip(keys, starts, ends, strict=True)]


def values_of(layout: Layout, frame: pl.DataFrame) -> list[Any]:
    """Return the values of a frame's rows: bare, or dicts of all columns."""
    if layout.value is not None:
        return _cells(layout.schema.field(layout.value), frame)
    rows = rows_of(frame.select(layout.names))
    for name, decode in _decoders(layout):
        for row in rows:
            if row[name] is not None:
                row[name] = decode(row[name])
    return rows


def rows_of(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as dicts. A window bound after the year 9999 is None, because Python cannot represent
    it.
    """
    bounds = [name for name in (WINDOW_START, WINDOW_END) if isinstance(frame.schema.get(name), pl.Datetime)]
    late = [name for name in bounds if frame.select((pl.col(name) > _PYTHONS_LAST).any()).item()]
    if late:
        frame = frame.with_columns(pl.when(pl.col(name) <= _PYTHONS_LAST).then(pl.col(name)) for name in late)
    return frame.to_dicts()


def canonical_values(layout: Layout, values: list[Any]) -> list[Any]:
    """Return bare values as their column gives them back, for example an int in a column of doubles as a float.

    Rows stay unchanged. Raises as ``columns_of`` does.
    """
    if not layout.value:
        return values
    column = layout.schema.field(layout.value)
    if are_exact(column, values):
        return values
    serde = serde_of_field(column)
    if serde.to_column is not None and serde.from_column is not None:
        encode, decode = serde.to_column, serde.from_column
        return [None if value is None else decode(encode(value)) for value in values]
    return _cells(column, pl.DataFrame(value_columns_of(layout, values)))


def columns_of(layout: Layout, keys: Sequence[Any], values: Sequence[Any]) -> list[pl.Series]:
    """Return the layout's columns of keys and values. Raises ``TypeError`` or polars' errors for wrong values."""
    columns = {column.name: column for column in (*key_columns_of(layout, keys), *value_columns_of(layout, values))}
    return [columns[name] for name in layout.names]


def key_columns_of(layout: Layout, keys: Sequence[Any]) -> list[pl.Series]:
    """Return the columns of keys. Raises as ``columns_of`` does."""
    return _typed(layout, _key_columns(layout, keys))


def value_columns_of(layout: Layout, values: Sequence[Any]) -> list[pl.Series]:
    """Return the columns of values; none for a layout of keys only. Raises as ``columns_of`` does."""
    if layout.value is not None:
        return _typed(layout, {layout.value: values}) if layout.value else []
    names = layout.value_columns
    return _typed(layout, {name: [None if value is None else value[name] for value in values] for name in names})


def _typed(layout: Layout, columns: dict[str, Any]) -> list[pl.Series]:
    types = polars_schema(layout.schema)
    return [_series(layout.schema.field(name), cells, types[name]) for name, cells in columns.items()]


def _key_columns(layout: Layout, keys: Sequence[Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if layout.windowed:
        columns |= {column.name: column for column in bounds_of(keys)}
        keys = [key.key for key in keys]
    if len(layout.key) == 1:
        columns[layout.key[0]] = keys
    else:
        for place, name in enumerate(layout.key):
            columns[name] = [None if key is None else key[place] for key in keys]
    return columns


def _series(column: pa.Field, cells: Any, data_type: pl.DataType) -> pl.Series:
    if isinstance(cells, pl.Series):
        return cells.alias(column.name)
    encode = serde_of_field(column).to_column if column.metadata else None
    if encode is not None:
        cells = [None if cell is None else encode(cell) for cell in cells]
    return pl.Series(column.name, cells, dtype=data_type, strict=True)


def _cells(column: pa.Field, frame: pl.DataFrame) -> list[Any]:
    cells: list[Any] = frame[column.name].to_list()
    decode = serde_of_field(column).from_column if column.metadata else None
    return cells if decode is None else [None if cell is None else decode(cell) for cell in cells]


def key_cells(column: pa.Field, cells: pl.Series) -> list[Any]:
    """Return the cells of a key's column in Python, all hashable."""
    decode = _key_decoder(column)
    found: list[Any] = cells.to_list()
    return found if decode is None else [None if cell is None else decode(cell) for cell in found]


def _key_decoder(column: pa.Field) -> Callable[[Any], Any] | None:
    if pa.types.is_nested(column.type):
        return key_of_cell
    if not column.metadata:
        return None
    serde = serde_of_field(column)
    return serde.from_column if serde.key_from_column is None else serde.key_from_column


def _decoders(layout: Layout) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield the columns whose cells in a row are not those of the frame, with their conversion."""
    for column in layout.schema:
        serde = serde_of_field(column) if column.metadata else None
        decode = None if serde is None else serde.from_column
        if column.name in layout.key:
            decode = _key_decoder(column)
        if decode is not None:
            yield column.name, decode


def window_columns(starts: npt.NDArray[np.int64], size_ms: int | None) -> list[pl.Series]:
    """Return the columns of windows of one size; None means without end."""
    return _bounds(pl.DataFrame({_START: starts}).with_columns(end_of(pl.col(_START), size_ms).alias(_END)))


def bounds_of(windows: Sequence[Windowed]) -> list[pl.Series]:
    """Return the columns of windows."""
    bounds = {_START: [window.start for window in windows], _END: [window.end for window in windows]}
    return _bounds(pl.DataFrame(bounds, schema={_START: pl.Int64, _END: pl.Int64}))


def end_of(start: pl.Expr, length_ms: int | None) -> pl.Expr:
    """Compute the ends of windows as ``window_end`` does."""
    return pl.lit(FOREVER_MS) if length_ms is None else start.clip(upper_bound=FOREVER_MS - length_ms) + length_ms


def instants(times_ms: Sequence[int]) -> pl.Series:
    """Return times in ms as a timestamp column; null for times beyond its range, such as the end of a window without
    end.
    """
    return pl.DataFrame({_START: pl.Series(times_ms, dtype=pl.Int64)}).select(_instant(pl.col(_START))).to_series()


def _bounds(bounds: pl.DataFrame) -> list[pl.Series]:
    # The same rule as ``millrace_streams.windows.windowed``, in columns.
    start = pl.col(_START).clip(upper_bound=LAST_INSTANT_MS)
    return bounds.select(_instant(start).alias(WINDOW_START), _instant(pl.col(_END)).alias(WINDOW_END)).get_columns()


def _instant(time_ms: pl.Expr) -> pl.Expr:
    return pl.when(time_ms <= LAST_INSTANT_MS).then(time_ms * 1000).cast(pl.Datetime("us", "UTC"))
