"""State stores in the test driver: entries, columns, views."""

from __future__ import annotations

from typing import Any

import polars as pl

from millrace_streams.checkpoints import entries
from millrace_streams.checkpoints.entries import StoreEntry
from millrace_streams.checkpoints.stores import describe_store
from millrace_streams.compiler import Plan
from millrace_streams.errors import TopologyError
from millrace_streams.frames.codec import columns_of
from millrace_streams.steps.batch import TIMESTAMP
from millrace_streams.steps.operator import AnyStore
from millrace_streams.steps.process_stores import view_of
from millrace_streams.steps.store import Store
from millrace_streams.stores import SessionStore, WindowStore
from millrace_streams.stores.base import Stored


def entries_of(store: AnyStore, plan: Plan) -> list[StoreEntry]:
    """Return all readable rows, by key (and window)."""
    [operator, *_] = [each for each in plan.task if store.spec.name in each.node.stores]
    return list(entries.entries_of(store, describe_store(store.spec, operator, plan.topology)))


def frame_of(store: AnyStore) -> pl.DataFrame:
    """Return all readable rows as columns."""
    if isinstance(store, Store):
        return store.rows()
    layout = store.spec.layout
    rows = [(key, *_stored(entry)) for key, entry in store.entries()]
    if isinstance(store, WindowStore | SessionStore):
        raise TopologyError(f"store {store.name}: read its windows with entries() or view()")
    columns = columns_of(layout, [key for key, _, _ in rows], [value for _, value, _ in rows])
    return pl.DataFrame([*columns, pl.Series(TIMESTAMP, [time_ms for _, _, time_ms in rows], dtype=pl.Int64)])


def view_of_store(store: AnyStore) -> Any:
    """Return a store as a processor sees it."""
    if isinstance(store, Store):
        raise TopologyError(f"store {store.spec.name} holds columns: read it with store() or entries()")
    return view_of(store)


def _stored(entry: Any) -> tuple[Any, int]:
    return (entry.value, entry.timestamp) if isinstance(entry, Stored) else (entry, 0)
