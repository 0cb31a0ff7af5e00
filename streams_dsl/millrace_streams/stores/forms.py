"""Forms: conversion of store entries to rows of columns and back.

A form makes one or several rows of each entry. The identity's columns come first. So a deleted entry is one row with
only these columns and the mark ``__deleted``. The names and types of the columns are the state's format.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, NamedTuple

import polars as pl
import pyarrow as pa

from millrace_streams.frames.codec import columns_of, keys_of, values_of
from millrace_streams.layout import ASKING, WINDOW_COLUMNS, Layout
from millrace_streams.state.rows import DELETED
from millrace_streams.stores.base import Stored, StoreSpec
from millrace_streams.stores.entries import Held, WaitingForPartner, WaitingForTable
from millrace_streams.stores.versioned import Versions
from millrace_streams.windows import Windowed

START: Final = "__start"
TIME: Final = "__time"
NOTHING: Final = "__nothing"
"""Column that marks the row of a deletion."""

Entries = Iterable[tuple[Hashable, Any]]
Rows = list[tuple[Any, ...]]
"""The cells of an entry's rows."""


class Part(NamedTuple):
    """Columns of one part of an entry.

    The part is a key, a value, or a number.
    """

    prefix: str
    layout: Layout | None
    name: str = ""
    text: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """Conversion between store entries and rows of columns.

    ``parts`` are the parts of a row. ``rows`` returns the cells of each row of an entry, one per part. The cell of a
    part with a layout is the pair of key and value. ``entry`` returns identity and entry from an entry's rows.
    ``identity`` returns the cells of the leading parts that identify an entry, also for a deleted one.
    """

    parts: tuple[Part, ...]
    rows: Callable[[Any, Any], Iterator[tuple[Any, ...]]]
    entry: Callable[[Rows], tuple[Hashable, Any]]
    identity: Callable[[Any], tuple[Any, ...]]

    def frame(self, entries: Entries) -> pl.DataFrame:
        """Encode entries as rows; a deleted one (None) as its identity."""
        cells: list[tuple[Any, ...]] = []
        deleted: list[bool] = []
        width = len(self.parts)
        for identity, entry in entries:
            if entry is None:
                known = self.identity(identity)
                unknown = self.parts[len(known) :]
                cells.append((*known, *(None if part.layout is None else (None, None) for part in unknown)))
                deleted.append(True)
                continue
            for row in self.rows(identity, entry):
                cells.append(row)
                deleted.append(False)
        columns = list(zip(*cells, strict=True)) if cells else [()] * width
        series = [one for part, column in zip(self.parts, columns, strict=True) for one in _series(part, list(column))]
        return pl.DataFrame([*series, pl.Series(DELETED, deleted, dtype=pl.Boolean)])

    def entries(self, frame: pl.DataFrame) -> Entries:
        """Decode rows to entries. Rows of one entry must be adjacent, and there must be no deleted ones."""
        columns = [_cells(part, frame) for part in self.parts]
        leading = self.parts[: len(self.identity(None))]

        def identity(row: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(cell if part.layout is None else cell[0] for part, cell in zip(leading, row, strict=False))

        for _, rows in groupby(zip(*columns, strict=True), key=identity):
            yield self.entry(list(rows))


def form_of(spec: StoreSpec) -> Form:
    """Return the form of a store's entries."""
    if spec.form == "row":
        return _ROWS[spec.kind](spec.entry_layout)
    return _OTHERS[spec.form](spec)


def _key_value(layout: Layout) -> Form:
    def entry(found: Rows) -> tuple[Hashable, Any]:
        [((key, value), time_ms)] = found
        return key, Stored(value, time_ms)

    return Form(
        parts=(Part("", layout), Part("", None, TIME)),
        rows=lambda key, stored: iter([((key, stored.value), stored.timestamp)]),
        entry=entry,
        identity=lambda key: ((key, None),),
    )


def _window(layout: Layout) -> Form:
    def entry(found: Rows) -> tuple[Hashable, Any]:
        [(start, (key, value), time_ms)] = found
        return (key, start), Stored(value, time_ms)

    return Form(
        parts=(Part("", None, START), Part("", layout), Part("", None, TIME)),
        rows=lambda identity, stored: iter([(identity[1], (identity[0], stored.value), stored.timestamp)]),
        entry=entry,
        identity=lambda identity: (None, (None, None)) if identity is None else (identity[1], (identity[0], None)),
    )


def _session(layout: Layout) -> Form:
    def entry(found: Rows) -> tuple[Hashable, Any]:
        [((session, value),)] = found
        return session, value

    return Form(
        parts=(Part("", layout),),
        rows=lambda session, value: iter([((session, value),)]),
        entry=entry,
        identity=lambda session: ((session, None),),
    )


def _versioned(layout: Layout) -> Form:
    def entry(found: Rows) -> tuple[Hashable, Any]:
        [((key, _), _), *_] = found
        return key, Versions([time_ms for _, time_ms in found], [value for (_, value), _ in found])

    return Form(
        parts=(Part("", layout), Part("", None, TIME)),
        rows=lambda key, versions: (
            ((key, value), time_ms) for time_ms, value in zip(versions.times, versions.values, strict=True)
        ),
        entry=entry,
        identity=lambda key: ((key, None),),
    )


def _records(spec: StoreSpec) -> Form:
    def entry(found: Rows) -> tuple[Hashable, Any]:
        [((key, _), time_ms), *_] = found
        return (key, time_ms), tuple(value for (_, value), _ in found)

    return Form(
        parts=(Part("", spec.layout), Part("", None, TIME)),
        rows=lambda identity, values: (((identity[0], value), identity[1]) for value in values),
        entry=entry,
        identity=lambda identity: ((None, None), None) if identity is None else ((identity[0], None), identity[1]),
    )


def _subscriptions(spec: StoreSpec) -> Form:
    asking = [column for column in spec.layout.schema if column.name.startswith(ASKING)]
    wanted = replace(spec.layout, schema=pa.schema([spec.layout.schema.field(spec.layout.key[0])]), value="")
    left = [column.with_name(column.name.removeprefix(ASKING)) for column in asking]
    key = tuple(column.name for column in left if column.name not in WINDOW_COLUMNS)
    leaving = Layout(schema=pa.schema(left), key=key, bucket_columns=None, windowed=len(key) < len(left))

    def entry(found: Rows) -> tuple[Hashable, Any]:
        [((wants, _), (left_key, _), digest, time_ms)] = found
        return (wants, left_key), Stored(digest, time_ms)

    return Form(
        parts=(Part("", wanted), Part(ASKING, leaving), Part("", None, "__digest", text=True), Part("", None, TIME)),
        rows=lambda identity, stored: iter(
            [((identity[0], None), (identity[1], None), stored.value, stored.timestamp)]
        ),
        entry=entry,
        identity=lambda identity: (
            ((None, None), (None, None)) if identity is None else ((identity[0], None), (identity[1], None))
        ),
    )


def _held(spec: StoreSpec) -> Form:
    before = Part("__before.", spec.layout)

    def entry(found: Rows) -> tuple[Hashable, Any]:
        [((key, value), time_ms, (_, replaced), due_ms)] = found
        return key, Held(key, value, time_ms, replaced, due_ms)

    return Form(
        parts=(Part("", spec.layout), Part("", None, TIME), before, Part("", None, "__due")),
        rows=lambda key, held: iter([((key, held.value), held.timestamp, (key, held.before), held.due)]),
        entry=entry,
        identity=lambda key: ((key, None),),
    )


def _waiting_for_partner(spec: StoreSpec) -> Form:
    """Return the form of a record that waits for a match; only the value of its side is present."""
    assert spec.other is not None

    def rows(identity: Any, waiting: WaitingForPartner) -> Iterator[tuple[Any, ...]]:
        side, key, time_ms = identity
        for value in waiting.values:
            left, right = (value, None) if waiting.left else (None, value)
            yield side, (key, left), time_ms, (key, right)

    def entry(found: Rows) -> tuple[Hashable, Any]:
        [(side, (key, _), time_ms, _), *_] = found
        is_left = side == 0
        values = tuple(left if is_left else right for _, (_, left), _, (_, right) in found)
        return (side, key, time_ms), WaitingForPartner(is_left, key, time_ms, values)

    return Form(
        parts=(
            Part("", None, "__side"),
            Part("", spec.layout),
            Part("", None, TIME),
            Part("__right.", spec.other),
        ),
        rows=rows,
        entry=entry,
        identity=lambda identity: (
            (None, (None, None), None) if identity is None else (identity[0], (identity[1], None), identity[2])
        ),
    )


def _waiting_for_table(spec: StoreSpec) -> Form:
    assert spec.other is not None

    def entry(found: Rows) -> tuple[Hashable, Any]:
        [(number, (key, value), time_ms, (table_key, _))] = found
        return number, WaitingForTable(number, key, value, time_ms, table_key)

    return Form(
        parts=(
            Part("", None, "__number"),
            Part("", spec.layout),
            Part("", None, TIME),
            Part("__table.", spec.other),
        ),
        rows=lambda number, waiting: iter(
            [(number, (waiting.key, waiting.value), waiting.timestamp, (waiting.table_key, None))]
        ),
        entry=entry,
        identity=lambda number: (number,),
    )


_ROWS: Final[dict[str, Callable[[Layout], Form]]] = {
    "key_value": _key_value,
    "window": _window,
    "session": _session,
    "versioned": _versioned,
}
_OTHERS: Final[dict[str, Callable[[StoreSpec], Form]]] = {
    "records": _records,
    "subscriptions": _subscriptions,
    "held": _held,
    "final": _held,
    "waiting_for_partner": _waiting_for_partner,
    "waiting_for_table": _waiting_for_table,
}


def _series(part: Part, cells: list[Any]) -> list[pl.Series]:
    if part.layout is None:
        return [pl.Series(part.prefix + part.name, cells, dtype=pl.String if part.text else pl.Int64)]
    keys, values = [key for key, _ in cells], [value for _, value in cells]
    if part.layout.windowed:
        # A missing key has no window.
        keys = [Windowed(None, 0, 0) if key is None else key for key in keys]
    columns = [column.alias(part.prefix + column.name) for column in columns_of(part.layout, keys, values)]
    nothing = pl.Series(part.prefix + NOTHING, [value is None for value in values], dtype=pl.Boolean)
    return [*columns, nothing]


def _cells(part: Part, frame: pl.DataFrame) -> list[Any]:
    if part.layout is None:
        return frame[part.prefix + part.name].to_list()
    layout = part.layout
    columns = frame.select(pl.col(part.prefix + name).alias(name) for name in layout.names)
    keys = keys_of(layout, columns)
    if layout.value == "":
        return [(key, None) for key in keys]
    nothing = frame[part.prefix + NOTHING].to_list()
    values = zip(values_of(layout, columns), nothing, strict=True)
    return [(key, None if none else value) for key, (value, none) in zip(keys, values, strict=True)]
