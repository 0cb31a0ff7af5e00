"""State stores as the test driver shows them: entries, columns, views."""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl

from millrace_streams.compiler import Plan
from millrace_streams.errors import TopologyError
from millrace_streams.graph import AggregateNode, FoldNode
from millrace_streams.steps.aggregate import AggregateStep
from millrace_streams.steps.batch import TIMESTAMP
from millrace_streams.steps.codec import columns_of
from millrace_streams.steps.operator import AnyStore
from millrace_streams.steps.process_stores import view_of
from millrace_streams.steps.store import Store
from millrace_streams.stores import SessionStore, WindowStore
from millrace_streams.stores.base import Stored
from millrace_streams.windows import FOREVER_MS, SlidingWindows, TimeWindows, Windowed


class StoreEntry(NamedTuple):
    """A row of a store; a windowed one's key is ``Windowed``. Stores of processors have no timestamps (0)."""

    key: Any
    value: Any
    timestamp_ms: int


def entries_of(store: AnyStore, plan: Plan) -> list[StoreEntry]:
    """All rows that can be read, by key (and window)."""
    if isinstance(store, Store):
        [operator] = [each for each in plan.task if store.spec.name in each.node.stores]
        batch = AggregateStep(operator).table(store)
        return sorted(map(StoreEntry, batch.keys, batch.values, batch.times))
    if isinstance(store, WindowStore):
        return [
            StoreEntry(Windowed(key, start, _end(store, start, plan)), *stored)
            for (key, start), stored in store.entries()
        ]
    if isinstance(store, SessionStore):
        return [StoreEntry(session, value, session.end) for session, value in store.entries()]
    return [StoreEntry(key, *_stored(entry)) for key, entry in store.entries()]


def frame_of(store: AnyStore) -> pl.DataFrame:
    """All rows that can be read, in columns."""
    if isinstance(store, Store):
        return store.rows()
    layout = store.spec.layout
    rows = [(key, *_stored(entry)) for key, entry in store.entries()]
    if isinstance(store, WindowStore | SessionStore):
        raise TopologyError(f"store {store.name}: read its windows with entries() or view()")
    columns = columns_of(layout, [key for key, _, _ in rows], [value for _, value, _ in rows])
    return pl.DataFrame([*columns, pl.Series(TIMESTAMP, [time_ms for _, _, time_ms in rows], dtype=pl.Int64)])


def view_of_store(store: AnyStore) -> Any:
    """A store as a processor sees it."""
    if isinstance(store, Store):
        raise TopologyError(f"store {store.spec.name} holds columns: read it with store() or entries()")
    return view_of(store)


def _stored(entry: Any) -> tuple[Any, int]:
    return (entry.value, entry.timestamp) if isinstance(entry, Stored) else (entry, 0)


def _end(store: WindowStore, start: int, plan: Plan) -> int:
    """The end of a window, which the store does not keep."""
    for operator in plan.task:
        node = operator.node
        if store.name in node.stores and isinstance(node, FoldNode | AggregateNode):
            if isinstance(node.window, TimeWindows):
                return start + node.window.size_ms
            if isinstance(node.window, SlidingWindows):
                return start + node.window.difference_ms
    return FOREVER_MS
