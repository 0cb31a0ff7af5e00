"""Stores of a task between batches: packed chunks to stores, and what a batch changed to chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace_streams.steps.chunks import ChunkWrite, load_store, save_delta
from millrace_streams.steps.operator import AnyStore, AnyStoreSpec
from millrace_streams.steps.store import Store, StoreSpec
from millrace_streams.steps.task import TaskResult
from millrace_streams.stores import new_store
from millrace_streams.stores.packing import restore, save_change


def load(spec: AnyStoreSpec, chunks: Sequence[bytes]) -> AnyStore:
    """A store of its chunks. Raises ``IncompatibleStateError`` when they are not of this topology."""
    if isinstance(spec, StoreSpec):
        return load_store(spec, chunks)
    store = new_store(spec)
    restore(store, chunks)
    return store


def writes(
    stores: Mapping[str, AnyStore], chunks: Mapping[str, Sequence[bytes]], result: TaskResult
) -> dict[str, ChunkWrite]:
    """How the chunks of each store that a batch changed must change."""
    found: dict[str, ChunkWrite] = {}
    for name, store in stores.items():
        if isinstance(store, Store):
            if name in result.deltas:
                found[name] = save_delta(store, chunks[name], result.deltas[name])
        elif result.changes[name].touched:
            found[name] = save_change(store, chunks[name], result.changes[name])
    return found
