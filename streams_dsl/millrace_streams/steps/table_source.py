"""Where a table begins: records as changes of its rows, by order of arrival, or of versions, by their own time."""

from __future__ import annotations

from dataclasses import dataclass

from millrace_streams.graph import MaterializeNode, ToTableNode
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State
from millrace_streams.stores import KeyValueStore, SessionStore, StoreSpec, VersionedStore


@dataclass(frozen=True)
class TableSourceStep:
    """The step of a ``ToTableNode`` or ``MaterializeNode``.

    A record without a key is dropped, and so is one that is older than the history of versions. Every other one is
    forwarded, also a deletion of what is not there.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The table's rows, if somebody asks for them."""
        node = self._node
        if node.store is None:
            return ()
        if node.history_ms is None:
            return (StoreSpec(name=node.store, kind="key_value", layout=self.operator.result),)
        layout = self.operator.result
        return (StoreSpec(name=node.store, kind="versioned", layout=layout, retention_ms=node.history_ms),)

    def run(self, inputs: Inputs, state: State) -> Output:
        """File the changes."""
        node, batch, out = self._node, inputs.batch, Emitted()
        store = state.stores[node.store] if node.store is not None else None
        assert not isinstance(store, SessionStore)
        latest = batch.latest or [True] * batch.height
        rows = zip(batch.keys, batch.values, batch.times, batch.olds, latest, strict=True)
        for row, (key, value, time_ms, old, newest) in enumerate(rows):
            if key is None:
                out.dropped += 1
                continue
            if isinstance(store, VersionedStore):
                before = store.get(key)
                filed = store.put(key, value, time_ms)
                if filed is None:
                    out.dropped += 1
                    continue
                old, newest = before.value if before is not None else None, filed
            elif isinstance(store, KeyValueStore):
                before = store.get(key)
                store.put(key, value, time_ms)
                old = before.value if before is not None else None
            out.add(row, key, value, time_ms, old if node.sends_old else None, newest)
        return out.output(self.operator.result)

    @property
    def _node(self) -> ToTableNode | MaterializeNode:
        node = self.operator.node
        assert isinstance(node, ToTableNode | MaterializeNode)
        return node
