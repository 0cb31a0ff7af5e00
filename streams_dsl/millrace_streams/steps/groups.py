"""Rows of a batch by key, and by window: what belongs together is found in columns, for loops over Python's objects."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
import polars as pl

from millrace_streams.frames.codec import keys_of
from millrace_streams.layout import Layout
from millrace_streams.steps.batch import TOMBSTONE, Batch, Rows
from millrace_streams.steps.flow import Place
from millrace_streams.stores.base import Stored

_ROW: Final = "__row"
_THERE: Final = "__there"
_START: Final = "__start"


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of rows: ``rows`` are their numbers, group by group, each in order, and ``ends`` where each group ends.

    ``keys`` and, if there are windows, ``starts`` are the groups'; with windows the earlier ones come first.
    """

    rows: Rows
    ends: list[int]
    keys: list[Any]
    starts: list[int]


def counts(layout: Layout, columns: Collection[str], *, needs_value: bool) -> pl.Expr:
    """Which rows have a key (it is null if all its columns are), and a value if one is needed."""
    there = pl.any_horizontal([pl.col(name).is_not_null() for name in layout.key])
    return there & has_value(layout, columns) if needs_value else there


def has_value(layout: Layout, columns: Collection[str]) -> pl.Expr:
    """Which rows have a value."""
    if layout.value is not None:
        return pl.col(layout.value).is_not_null()
    return ~pl.col(TOMBSTONE).fill_null(False) if TOMBSTONE in columns else pl.lit(True)


def rows_that_count(batch: Batch, *, needs_value: bool) -> Rows:
    """The numbers of the rows that have a key, and a value if one is needed."""
    return _rows_where(batch, counts(batch.layout, batch.frame.columns, needs_value=needs_value))


def rows_with_value(batch: Batch) -> Rows:
    """The numbers of the rows that have a value."""
    return _rows_where(batch, has_value(batch.layout, batch.frame.columns))


def _rows_where(batch: Batch, there: pl.Expr) -> Rows:
    return batch.frame.with_columns(there.alias(_THERE))[_THERE].arg_true().to_numpy().astype(np.int64)


def group(batch: Batch, rows: Rows, starts: Rows | None = None) -> Groups:
    """Group rows by key; with ``starts``, which has the start of a window for each of the rows, by window as well."""
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
    """What folding groups gave: per row, group by group, the result, what was before it, and the result's time."""

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
    """Fold each group's rows into what is stored of it: asked for once, and stored once.

    ``times`` are the rows'. ``load`` and ``save`` are given key and window's start; ``add`` the key, the group's first
    row and the one after its last, the aggregate to begin with, and the list to which it appends that after each row.
    When ``add`` raises, ``place`` is at the row to blame.
    """
    folded = Folded()
    results, first = folded.results, 0
    try:
        for number, (key, end) in enumerate(zip(groups.keys, groups.ends, strict=True)):
            start = groups.starts[number] if groups.starts else 0
            stored = load(key, start)
            aggregate, time_ms = stored if stored is not None else (None, -1)
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
    """The largest time so far at each result of a group, begun anew after a None, which deletes what there was."""
    if None not in results:
        return list(accumulate(chain((newest_ms,), times), max))[1:]
    newest = []
    for time_ms, result in zip(times, results, strict=True):
        newest_ms = max(newest_ms, time_ms)
        newest.append(newest_ms)
        if result is None:
            newest_ms = -1
    return newest
