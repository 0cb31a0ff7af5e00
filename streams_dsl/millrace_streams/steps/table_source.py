"""Table source: records as changes of rows, or as versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace_streams.graph import MaterializeNode, ToTableNode
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.flow import Inputs, Output
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State
from millrace_streams.stores import KeyValueStore, StoreSpec, VersionedStore


@dataclass(frozen=True)
class TableSourceStep:
    """Step of a ``ToTableNode`` or ``MaterializeNode``.

    A record without a key is dropped, and so is one that is older than the history of versions. All others are
    forwarded, even a deletion of a missing row.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The store of the table's rows, if they are needed."""
        node = self._node
        if node.store is None or node.history_ms is None:
            return self.operator.store_of_rows(node.store)
        layout = self.operator.result
        return (StoreSpec(name=node.store, kind="versioned", layout=layout, retention_ms=node.history_ms),)

    def run(self, inputs: Inputs, state: State) -> Output:
        """Store the changes."""
        node, batch = self._node, inputs.batch
        rows = batch.rows_with_key()
        there = batch if len(rows) == batch.height else batch.take(rows)
        store = state.stores[node.store] if node.store is not None else None
        latest = batch.latest
        if isinstance(store, VersionedStore):
            filed, replaced, latest = self._file_versions(store, there)
            there, rows = there.take(filed), rows[filed]
        elif isinstance(store, KeyValueStore):
            replaced = store.put_all(there.keys, there.values, there.times)
        else:
            replaced = there.olds
        changes = there.with_changes(self.operator.result, replaced if node.sends_old else None, latest)
        return Output(changes, rows, batch.height - len(rows))

    def _file_versions(self, store: VersionedStore, batch: Batch) -> tuple[list[int], list[Any], list[bool]]:
        """Store versions one by one; returns the rows within the history, their old values, and which are the
        newest.
        """
        rows: list[int] = []
        replaced: list[Any] = []
        latest: list[bool] = []
        store.want(batch.keys)
        for row, (key, value, time_ms) in enumerate(zip(batch.keys, batch.values, batch.times, strict=True)):
            before = store.get(key)
            newest = store.put(key, value, time_ms)
            if newest is not None:
                rows.append(row)
                replaced.append(before.value if before is not None else None)
                latest.append(newest)
        return rows, replaced, latest

    @property
    def _node(self) -> ToTableNode | MaterializeNode:
        node = self.operator.node
        assert isinstance(node, ToTableNode | MaterializeNode)
        return node
