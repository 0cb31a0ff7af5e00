"""Entries of any store, as keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from millrace_streams.checkpoints.stores import StoreDescription
from millrace_streams.frames.codec import bounds_of, columns_of, instants, window_columns
from millrace_streams.layout import WINDOW_COLUMNS
from millrace_streams.serdes import sort_key
from millrace_streams.steps.accumulators import result_of
from millrace_streams.steps.batch import TIMESTAMP, Batch
from millrace_streams.steps.named_folds import with_results
from millrace_streams.steps.operator import AnyStore
from millrace_streams.steps.store import Store
from millrace_streams.stores import ObjectStore, SessionStore, WindowStore
from millrace_streams.stores.base import Stored
from millrace_streams.windows import Windowed, window_end


class StoreEntry(NamedTuple):
    """A row of a store; a windowed key is ``Windowed``. Rows of processors' stores have no timestamp (0)."""

    key: Any
    value: Any
    timestamp_ms: int


def entries_of(store: AnyStore, described: StoreDescription) -> Iterator[StoreEntry]:
    """Yield all readable rows of one bucket, by key (and window)."""
    if isinstance(store, Store):
        batch = Batch.of_frame(described.layout, table_of(store, described))
        yield from sorted(
            map(StoreEntry, batch.keys, batch.values, batch.times), key=lambda entry: sort_place(entry.key)
        )
        return
    entries = [_entry(store, key, entry, described) for key, entry in store.entries()]
    if not described.results:
        yield from entries
        return
    keys, values, times = map(list, zip(*entries, strict=True)) if entries else ([], [], [])
    kept = Batch.of_lists(store.spec.layout, keys, values, times)
    yield from map(StoreEntry, keys, with_results(kept, described.layout, _results(described)).values, times)


def _entry(store: ObjectStore, key: Any, entry: Any, described: StoreDescription) -> StoreEntry:
    match store:
        case WindowStore():
            bare, start = key
            return StoreEntry(Windowed(bare, start, window_end(start, described.window_size_ms)), *entry)
        case SessionStore():
            return StoreEntry(key, entry, key.end)
    value, time_ms = entry if isinstance(entry, Stored) else (entry, 0)
    return StoreEntry(key, value, time_ms)


def _results(described: StoreDescription) -> dict[str, pl.Expr]:
    return {name: result_of(name, kind) for name, kind in described.results}


def table_of(store: Store, described: StoreDescription) -> pl.DataFrame:
    """Return the results of a store of accumulators: columns of the key, its window, the aggregates, the time."""
    rows = store.rows()
    keys = [name for name in store.spec.key if name != store.spec.window]
    frame = rows.select(*keys, TIMESTAMP, **_results(described))
    if store.spec.window is None:
        return frame
    starts = rows[store.spec.window].to_numpy()
    return frame.with_columns(*window_columns(starts, described.window_size_ms))


def frame_of(entries: Sequence[StoreEntry], described: StoreDescription) -> pl.DataFrame:
    """Return entries as columns of the key, its window if it has one, the value, and ``timestamp``."""
    layout, keys = described.layout, [entry.key for entry in entries]
    windows: list[pl.Series] = []
    if described.windowed:
        windows = bounds_of(keys)
        keys = [key.key for key in keys]
        bare = [column for column in layout.schema if column.name not in WINDOW_COLUMNS]
        layout = replace(layout, schema=pa.schema(bare), windowed=False)
    by_name = {column.name: column for column in columns_of(layout, keys, [entry.value for entry in entries])}
    times = instants([entry.timestamp_ms for entry in entries]).alias("timestamp")
    names = [*layout.key, *layout.value_columns]
    columns = [*(by_name[name] for name in layout.key), *windows, *(by_name[name] for name in layout.value_columns)]
    return pl.DataFrame(columns if "timestamp" in names else [*columns, times])


def sort_place(key: Any) -> tuple[Any, ...]:
    """Return the sort key of a key: its bytes, then its window."""
    if isinstance(key, Windowed):
        return (sort_key(key.key), key.start, key.end)
    return (sort_key(key), 0, 0)
