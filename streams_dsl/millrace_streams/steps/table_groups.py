"""A table's rows grouped anew: changes under the group's key, and what Python functions add up of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace_streams.graph import GroupTableNode, TableFoldNode
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.evaluation import to_polars
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.map_values import reserved_of
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, StatelessStep, typed
from millrace_streams.stores import KeyValueStore, StoreSpec


@dataclass(frozen=True)
class GroupTableStep(StatelessStep):
    """The step of a ``GroupTableNode``.

    A row that stays in its group gives one change, one that moves two: first what its old group loses (KIP-904). A half
    without key or value is left out; changes of versions that are not the newest are.
    """

    def run(self, inputs: Inputs, state: State) -> Output:
        """Put the changes under their groups' keys."""
        batch, out = inputs.batch, Emitted()
        news = self._selected(batch, batch.values, inputs)
        olds = self._selected(batch, batch.olds, inputs)
        latest = batch.latest if batch.latest is not None and self.operator.versioned[0] else [True] * batch.height
        rows = zip(news, olds, batch.times, latest, strict=True)
        for row, ((new_key, new), (old_key, old), time_ms, newest) in enumerate(rows):
            if not newest:
                out.dropped += 1
                continue
            there, gone = new_key is not None and new is not None, old_key is not None and old is not None
            if there and gone and new_key == old_key:
                out.add(row, new_key, new, time_ms, old)
                continue
            if gone:
                out.add(row, old_key, None, time_ms, old)
            if there:
                out.add(row, new_key, new, time_ms)
        return typed(self.operator.node, out.output(self.operator.result))

    def _selected(self, batch: Batch, values: list[Any], inputs: Inputs) -> list[tuple[Any, Any]]:
        node = self.operator.node
        assert isinstance(node, GroupTableNode)
        if node.selector is None:
            return self._computed(node, batch, values)
        call, pairs = node.selector.keyed, []
        with inputs.blaming(node.name, node.selector) as place:
            for place.turn, (key, value) in enumerate(zip(batch.keys, values, strict=True)):
                pairs.append((None, None) if value is None else call(key, value))
        return pairs

    def _computed(self, node: GroupTableNode, batch: Batch, values: list[Any]) -> list[tuple[Any, Any]]:
        frame, result = batch.with_values(values).frame, self.operator.result
        columns = frame.with_columns(**{name: to_polars(expression) for name, expression in node.columns})
        selected = Batch.of_frame(result, columns.select(*result.names, *reserved_of(frame)))
        rows = zip(values, selected.keys, selected.values, strict=True)
        return [(None, None) if given is None else (key, value) for given, key, value in rows]


@dataclass(frozen=True)
class TableFoldStep:
    """The step of a ``TableFoldNode``: takes the old value away from a group's aggregate and adds the new one.

    A group that was never there has nothing to lose. A result of None deletes it.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The aggregates."""
        return (StoreSpec(name=self._node.store, kind="key_value", layout=self.operator.result),)

    def run(self, inputs: Inputs, state: State) -> Output:
        """Take away and add."""
        node, batch, out = self._node, inputs.batch, Emitted()
        store = state.stores[node.store]
        assert isinstance(store, KeyValueStore)
        with inputs.blaming(node.name, "adder or subtractor") as place:
            rows = zip(batch.keys, batch.values, batch.olds, batch.times, strict=True)
            for place.turn, (key, new, old, time_ms) in enumerate(rows):
                stored = store.get(key)
                before = stored.value if stored is not None else None
                result = before
                if old is not None and result is not None:
                    result = node.subtractor(key, old, result)
                if new is not None:
                    result = self._added(node, key, new, result)
                time_ms = time_ms if stored is None else max(time_ms, stored.timestamp)
                store.put(key, result, time_ms)
                out.add(place.turn, key, result, time_ms, before if node.sends_old else None)
        return typed(node, out.output(self.operator.result))

    def _added(self, node: TableFoldNode, key: Any, new: Any, aggregate: Any) -> Any:
        if aggregate is None:
            if node.initializer is None:
                return new
            aggregate = node.initializer()
        return node.adder(key, new, aggregate)

    @property
    def _node(self) -> TableFoldNode:
        node = self.operator.node
        assert isinstance(node, TableFoldNode)
        return node
