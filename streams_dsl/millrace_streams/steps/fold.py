"""What Python functions fold together, by key alone: ``reduce``, ``aggregate`` and cogroups without windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace_streams.graph import Fold, FoldNode
from millrace_streams.steps.flow import Emitted, Inputs, Output, Place
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, typed
from millrace_streams.stores import KeyValueStore, StoreSpec


@dataclass(frozen=True)
class FoldStep:
    """The step of a ``FoldNode`` without a window; base of those with one.

    Records without a key or a value are dropped. A result of None deletes the row, and the next record begins anew.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The aggregates."""
        return (StoreSpec(name=self.node.store, kind="key_value", layout=self.operator.result),)

    @property
    def node(self) -> FoldNode:
        """The node."""
        node = self.operator.node
        assert isinstance(node, FoldNode)
        return node

    def run(self, inputs: Inputs, state: State) -> Output:
        """Fold record by record."""
        out = Emitted()
        with inputs.blaming(self.node.name, "aggregator") as place:
            self.fold(inputs, state, place, out)
        return typed(self.node, out.output(self.operator.result))

    def fold(self, inputs: Inputs, state: State, place: Place, out: Emitted) -> None:
        """Handle the records in turn."""
        node, store = self.node, state.stores[self.node.store]
        assert isinstance(store, KeyValueStore)
        for place.turn, side, row in inputs.turns():
            batch = inputs.batches[side]
            key, value, time_ms = batch.keys[row], batch.values[row], batch.times[row]
            if key is None or value is None:
                out.dropped += 1
                continue
            stored = store.get(key)
            before = stored.value if stored is not None else begin(node.folds[side])
            time_ms = time_ms if stored is None else max(time_ms, stored.timestamp)
            result = go_on(node.folds[side], key, value, before)
            store.put(key, result, time_ms)
            out.add(place.turn, key, result, time_ms, before if node.sends_old else None)


def begin(fold: Fold) -> Any:
    """The aggregate of nothing; None where the first value is to be the first aggregate."""
    return fold.initializer() if fold.initializer is not None else None


def go_on(fold: Fold, key: Any, value: Any, aggregate: Any) -> Any:
    """The aggregate with one value more."""
    if fold.initializer is None and aggregate is None:
        return value
    return fold.aggregator(key, value, aggregate)
