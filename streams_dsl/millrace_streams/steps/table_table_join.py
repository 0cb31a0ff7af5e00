"""The rows of two tables that have the same key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace_streams.graph import TableTableJoinNode
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.joins import TableView, keys_of_side
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, typed
from millrace_streams.stores import KeyValueStore, StoreSpec


@dataclass(frozen=True)
class TableTableJoinStep:
    """The step of a ``TableTableJoinNode``; inputs are the changes of both tables.

    A change of either side is joined with the other side's row, under the larger of both times. A deletion goes out
    whenever the other side would have made a result possible, whether or not there was one.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The joined rows, if they are kept."""
        node = self._node
        if node.store is None:
            return ()
        return (StoreSpec(name=node.store, kind="key_value", layout=self.operator.result),)

    def run(self, inputs: Inputs, state: State) -> Output:
        """Join in turn."""
        node, out, reads = self._node, Emitted(), self.operator.reads
        keys = keys_of_side(inputs, 0) | keys_of_side(inputs, 1)
        views = [TableView.of(state, store, keys) for store in reads if store is not None]
        if reads[0] == reads[1]:
            # A table joined with itself: its row has changed before either side is asked.
            views[1] = views[0]
        store = state.stores[node.store] if node.store is not None else None
        with inputs.blaming(node.name, node.joiner) as place:
            for place.turn, side, row in inputs.turns():
                batch = inputs.batches[side]
                if self.operator.versioned[side] and batch.latest is not None and not batch.latest[row]:
                    out.dropped += 1
                    continue
                key, value, time_ms = batch.keys[row], batch.values[row], batch.times[row]
                views[side].roll(key, value, time_ms)
                other = views[1 - side].get(key, time_ms)
                opposite = other.value if other is not None else None
                if not self._answers(side, opposite, value, batch.olds[row]):
                    continue
                result = self._joined(side, key, value, opposite)
                before = self._joined(side, key, batch.olds[row], opposite) if node.sends_old else None
                time_ms = time_ms if other is None else max(time_ms, other.timestamp)
                if isinstance(store, KeyValueStore):
                    store.put(key, result, time_ms)
                out.add(place.turn, key, result, time_ms, before)
        return typed(node, out.output(self.operator.result))

    def _answers(self, side: int, opposite: Any, new: Any, old: Any) -> bool:
        """Whether a change gives a result at all."""
        if opposite is not None:
            return True
        if self._node.kind == "inner" or (self._node.kind == "left" and side == 1):
            return False
        return new is not None or old is not None

    def _joined(self, side: int, key: Any, value: Any, opposite: Any) -> Any:
        """The joined value of a row of one side and of the other's, None where that gives none."""
        left, right = (value, opposite) if side == 0 else (opposite, value)
        kind = self._node.kind
        if left is None and (kind != "outer" or right is None):
            return None
        if right is None and kind == "inner":
            return None
        return self._node.joiner.keyed(key, left, right)

    @property
    def _node(self) -> TableTableJoinNode:
        node = self.operator.node
        assert isinstance(node, TableTableJoinNode)
        return node
