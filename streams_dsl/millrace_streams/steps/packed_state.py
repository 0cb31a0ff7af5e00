"""Stores of a task over stored rows, saved after a batch."""

from __future__ import annotations

from collections.abc import Mapping

from millrace_streams.state.pages import RowsSpec
from millrace_streams.state.rows import LIMITS, KeptRows, Limits
from millrace_streams.state.variables import StateVariables
from millrace_streams.steps.batch import NO_TIMESTAMP
from millrace_streams.steps.operator import AnyStore, AnyStoreSpec
from millrace_streams.steps.store import STREAM_TIME, Store, StoreSpec
from millrace_streams.steps.task import TaskResult
from millrace_streams.stores import new_store
from millrace_streams.stores.below import EntriesBelow, packed, rows_of


def rows_spec(spec: AnyStoreSpec) -> RowsSpec:
    """Return the description of a store's rows."""
    if not isinstance(spec, StoreSpec):
        return rows_of(spec)
    return RowsSpec(
        name=spec.name,
        schema=spec.schema,
        identity=spec.key,
        key=tuple(name for name in spec.key if name != spec.window),
        time=spec.window,
        retention_ms=spec.retention_ms,
    )


def kept_rows(
    spec: AnyStoreSpec, variables: StateVariables, limits: Limits = LIMITS, *, buckets: int | None = None
) -> KeptRows:
    """Read the rows of a store. ``buckets`` is the current number of buckets, None for a reader.

    Raises ``IncompatibleStateError`` for rows of another topology, version or number of buckets.
    """
    return KeptRows.read(rows_spec(spec), variables, limits, buckets=buckets)


def store_over(spec: AnyStoreSpec, kept: KeptRows) -> AnyStore:
    """Create a store over stored rows; several stores can be created over the same rows."""
    numbers = dict(kept.facts.numbers)
    if isinstance(spec, StoreSpec):
        return Store(spec, stream_time_ms=numbers.get(STREAM_TIME, NO_TIMESTAMP), below=kept)
    store = new_store(spec)
    store.lie_over(EntriesBelow(spec, kept), numbers, kept.facts.kept_from_ms)
    return store


def save(stores: Mapping[str, AnyStore], kept: Mapping[str, KeptRows], result: TaskResult) -> None:
    """Save the changes of a batch in each store."""
    for name, store in stores.items():
        if isinstance(store, Store):
            if name in result.deltas:
                numbers = {STREAM_TIME: store.stream_time_ms}
                kept[name].save(result.deltas[name].rows, numbers, store.kept_from_ms)
        elif result.changes[name].touched:
            change = result.changes[name]
            kept[name].save(packed(store.spec, change.entries.items()), change.numbers, store.kept_from_ms)
