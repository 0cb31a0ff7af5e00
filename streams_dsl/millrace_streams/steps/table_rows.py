"""Row-by-row filter and mapping of a table, for new and old values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace_streams.frames.evaluation import to_polars
from millrace_streams.graph import TableFilterNode, TableMapNode, TableNode, TableSelectNode
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.map_values import reserved_of
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, typed
from millrace_streams.steps.predicates import rows_passing
from millrace_streams.stores import KeyValueStore


@dataclass(frozen=True)
class TableRowsStep:
    """Base of the steps that change a table's rows one by one.

    A step may have a store for the rows.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The store of the rows, if there is one."""
        node = self.operator.node
        assert isinstance(node, TableNode)
        return self.operator.store_of_rows(node.store)

    def _changes(self, inputs: Inputs, state: State, news: list[Any], olds: list[Any], *, skip_nothing: bool) -> Output:
        """Forward changes, and store the rows. With ``skip_nothing`` changes without new and old value are skipped."""
        node, batch, out = self.operator.node, inputs.batch, Emitted()
        assert isinstance(node, TableNode)
        store = state.stores[node.store] if node.store is not None else None
        latest = batch.latest or [True] * batch.height
        rows = zip(batch.keys, news, olds, batch.times, latest, strict=True)
        for row, (key, new, old, time_ms, newest) in enumerate(rows):
            if isinstance(store, KeyValueStore):
                stored = store.get(key)
                old = stored.value if stored is not None else None
            if skip_nothing and new is None and old is None:
                continue
            if isinstance(store, KeyValueStore):
                store.put(key, new, time_ms)
            if not newest:
                out.outdated.append(len(out.causes))
            out.add(row, key, new, time_ms, old if node.sends_old else None)
        return out.output(self.operator.result)


@dataclass(frozen=True)
class TableFilterStep(TableRowsStep):
    """Step of a ``TableFilterNode``.

    If the changes carry old values, a deletion is forwarded only if the row had passed before. All deletions of a
    versioned table are forwarded.
    """

    def run(self, inputs: Inputs, state: State) -> Output:
        """Keep the rows that pass."""
        node, batch = self.operator.node, inputs.batch
        assert isinstance(node, TableFilterNode)
        news = self._passing(node, batch, batch.values, inputs)
        olds = self._passing(node, batch, batch.olds, inputs) if node.sends_old else [None] * batch.height
        skip_nothing = node.sends_old and not self.operator.versioned[0]
        return self._changes(inputs, state, news, olds, skip_nothing=skip_nothing)

    def _passing(self, node: TableFilterNode, batch: Batch, values: list[Any], inputs: Inputs) -> list[Any]:
        there = [row for row, value in enumerate(values) if value is not None]
        rows = batch.with_values(values).take(there)
        passing: list[Any] = [None] * batch.height
        for number in rows_passing(node.predicate, rows, inputs, node.name, negate=node.negate, turns=there):
            passing[there[number]] = values[there[number]]
        return passing


@dataclass(frozen=True)
class TableMapStep(TableRowsStep):
    """Step of a ``TableMapNode``.

    New values come from a Python function, which is not called for deletions.
    """

    def run(self, inputs: Inputs, state: State) -> Output:
        """Call the function."""
        node, batch = self.operator.node, inputs.batch
        assert isinstance(node, TableMapNode)
        news = inputs.call_present(node.name, node.function, batch.keys, batch.values)
        olds = batch.olds
        if node.sends_old:
            olds = inputs.call_present(node.name, node.function, batch.keys, olds)
        return typed(node, self._changes(inputs, state, news, olds, skip_nothing=False), inputs)


@dataclass(frozen=True)
class TableSelectStep(TableRowsStep):
    """Step of a ``TableSelectNode``: new values from expressions."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Compute the columns."""
        node, batch = self.operator.node, inputs.batch
        assert isinstance(node, TableSelectNode)
        news = self._computed(node, batch, batch.values)
        olds = self._computed(node, batch, batch.olds) if node.sends_old else [None] * batch.height
        return self._changes(inputs, state, news, olds, skip_nothing=False)

    def _computed(self, node: TableSelectNode, batch: Batch, values: list[Any]) -> list[Any]:
        frame, result = batch.with_values(values).frame, self.operator.result
        columns = frame.with_columns(**{name: to_polars(expression) for name, expression in node.columns})
        computed = Batch.of_frame(result, columns.select(*result.names, *reserved_of(frame))).values
        return [None if given is None else value for given, value in zip(values, computed, strict=True)]
