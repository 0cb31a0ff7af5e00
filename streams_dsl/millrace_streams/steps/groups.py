"""Grouping of a batch's rows by key and window, in columns."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
import polars as pl

from millrace_streams.frames.codec import keys_of
from millrace_streams.layout import Layout
from millrace_streams.steps.batch import NO_TIMESTAMP, TOMBSTONE, Batch, Rows
from millrace_streams.steps.flow import Place
from millrace_streams.stores.base import Stored

_ROW: Final = "__row"
_THERE: Final = "__there"
_START: Final = "__start"


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of rows with the same key and window.

    ``rows`` are the numbers of the rows by group, each group in order. ``ends`` has the end of each group in ``rows``.
    ``keys`` and, with windows, ``starts`` belong to the groups; earlier windows come first.
    """

    rows: Rows
    ends: list[int]
    keys: list[Any]
    starts: list[int]


def counts(layout: Layout, columns: Collection[str], *, needs_value: bool) -> pl.Expr:
    """Return a mask of rows with a key (null if all its columns are null), and with a value if needed."""
    there = pl.any_horizontal([pl.col(name).is_not_null() for name in layout.key])
    return there & has_value(layout, columns) if needs_value else there


def has_value(layout: Layout, columns: Collection[str]) -> pl.Expr:
    """Return a mask of rows with a value."""
    if layout.value is not None:
        return pl.col(layout.value).is_not_null()
    return ~pl.col(TOMBSTONE).fill_null(False) if TOMBSTONE in columns else pl.lit(True)


def rows_that_count(batch: Batch, *, needs_value: bool) -> Rows:
    """Return the numbers of the rows with a key, and with a value if needed."""
    return _rows_where(batch, counts(batch.layout, batch.frame.columns, needs_value=needs_value))


def rows_with_value(batch: Batch) -> Rows:
    """Return the numbers of the rows with a value."""
    return _rows_where(batch, has_value(batch.layout, batch.frame.columns))


def _rows_where(batch: Batch, there: pl.Expr) -> Rows:
    return batch.frame.with_columns(there.alias(_THERE))[_THERE].arg_true().to_numpy().astype(np.int64)


def group(batch: Batch, rows: Rows, starts: Rows | None = None) -> Groups:
    """Group rows by key, and also by window if ``starts`` has a window start per row."""
    names = list(batch.layout.key_columns)
    keyed = batch.frame.select(names)
    if len(rows) < batch.height or starts is not None:
        keyed = keyed[rows]
    columns = [pl.Series(_ROW, rows)]
    if starts is not None:
        columns.append(pl.Series(_START, starts))
        names.append(_START)
    grouped = keyed.with_columns(columns).group_by(names, maintain_order=True).agg(pl.col(_ROW))
    if starts is not None:
        grouped = grouped.sort(_START, maintain_order=True)
    ends = grouped[_ROW].list.len().cast(pl.Int64).cum_sum().to_list()
    return Groups(
        rows=grouped[_ROW].explode().to_numpy(),
        ends=ends,
        keys=keys_of(batch.layout, grouped),
        starts=grouped[_START].to_list() if starts is not None else [],
    )


@dataclass(slots=True)
class Folded:
    """Result of folded groups, with one entry per row, by group.

    ``results`` has the result of a row, ``befores`` the previous aggregate, and ``times`` the time of the result.
    """

    results: list[Any] = field(default_factory=list)
    befores: list[Any] = field(default_factory=list)
    times: list[int] = field(default_factory=list)


def fold_groups(
    groups: Groups,
    times: list[int],
    place: Place,
    *,
    load: Callable[[Any, int], Stored | None],
    add: Callable[[Any, int, int, Any, list[Any]], None],
    save: Callable[[Any, int, Any, int], None],
) -> Folded:
    """Fold each group's rows into its stored aggregate, which is loaded once and saved once.

    ``times`` are the rows' times. ``load`` and ``save`` take the key and the start of the window. ``add`` takes the
    key, the group's first row, the row after its last, and the initial aggregate. The last argument of ``add`` is the
    list to which it appends the aggregate after each row. If ``add`` raises, ``place`` is set to the failing row.
    """
    folded = Folded()
    results, first = folded.results, 0
    try:
        for number, (key, end) in enumerate(zip(groups.keys, groups.ends, strict=True)):
            start = groups.starts[number] if groups.starts else 0
            stored = load(key, start)
            aggregate, time_ms = stored if stored is not None else (None, NO_TIMESTAMP)
            add(key, first, end, aggregate, results)
            folded.befores.append(aggregate)
            folded.befores.extend(results[first : end - 1])
            folded.times.extend(_newest_times(times[first:end], results[first:end], time_ms))
            save(key, start, results[-1], folded.times[-1])
            first = end
    except Exception:
        if len(results) < len(groups.rows):
            place.turn = int(groups.rows[len(results)])
        raise
    return folded


def _newest_times(times: list[int], results: list[Any], newest_ms: int) -> list[int]:
    """Return the largest time so far at each result of a group; it restarts after None, which deletes the aggregate."""
    if None not in results:
        return list(accumulate(chain((newest_ms,), times), max))[1:]
    newest = []
    for time_ms, result in zip(times, results, strict=True):
        newest_ms = max(newest_ms, time_ms)
        newest.append(newest_ms)
        if result is None:
            newest_ms = NO_TIMESTAMP
    return newest
