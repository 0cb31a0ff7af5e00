"""A table's rows grouped anew: changes under the group's key, and what Python functions add up of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from millrace_streams.graph import GroupTableNode, TableFoldNode
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.evaluation import to_polars
from millrace_streams.steps.flow import Emitted, Inputs, Output, Place
from millrace_streams.steps.map_values import reserved_of
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, StatelessStep, typed
from millrace_streams.stores import KeyValueStore, StoreSpec
from millrace_streams.stores.base import Stored

_NOTHING: Final = (None, None)


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
        return typed(self.operator.node, out.output(self.operator.result), inputs)

    def _selected(self, batch: Batch, values: list[Any], inputs: Inputs) -> list[tuple[Any, Any]]:
        node = self.operator.node
        assert isinstance(node, GroupTableNode)
        if node.selector is None:
            return self._computed(node, batch, values)
        pairs = inputs.call_present(node.name, node.selector, batch.keys, values)
        return [_NOTHING if pair is None else pair for pair in pairs]

    def _computed(self, node: GroupTableNode, batch: Batch, values: list[Any]) -> list[tuple[Any, Any]]:
        frame, result = batch.with_values(values).frame, self.operator.result
        columns = frame.with_columns(**{name: to_polars(expression) for name, expression in node.columns})
        selected = Batch.of_frame(result, columns.select(*result.names, *reserved_of(frame)))
        rows = zip(values, selected.keys, selected.values, strict=True)
        return [_NOTHING if given is None else (key, value) for given, key, value in rows]


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
        """Take away and add, group by group."""
        node, batch, out = self._node, inputs.batch, Emitted()
        store = state.stores[node.store]
        assert isinstance(store, KeyValueStore)
        groups: dict[Any, list[int]] = {}
        for row, key in enumerate(batch.keys):
            if key in groups:
                groups[key].append(row)
            else:
                groups[key] = [row]
        with inputs.blaming(node.name, "adder or subtractor") as place:
            for key, rows in groups.items():
                store.put(key, *self._changed(key, rows, store.get(key), batch, place, out))
        return typed(node, out.output(self.operator.result), inputs).in_order()

    def _changed(
        self, key: Any, rows: list[int], stored: Stored | None, batch: Batch, place: Place, out: Emitted
    ) -> tuple[Any, int]:
        """Give a group's aggregate after each of these changes, and return the last with its time."""
        node, news, olds, times = self._node, batch.values, batch.olds, batch.times
        aggregate, newest_ms = stored if stored is not None else (None, -1)
        befores: list[Any] = []
        results: list[Any] = []
        newest_times: list[int] = []
        for row in rows:
            place.turn = row
            new, old, time_ms = news[row], olds[row], times[row]
            befores.append(aggregate)
            newest_ms = time_ms if aggregate is None or time_ms > newest_ms else newest_ms
            if old is not None and aggregate is not None:
                aggregate = node.subtractor(key, old, aggregate)
            if new is not None:
                aggregate = self._added(node, key, new, aggregate)
            results.append(aggregate)
            newest_times.append(newest_ms)
        out.extend(rows, key, results, newest_times, befores if node.sends_old else None)
        return aggregate, newest_ms

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
