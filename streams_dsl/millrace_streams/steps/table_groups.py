"""Regrouped rows of a table, and their aggregates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl

from millrace_streams.frames.cells import ValueConversion
from millrace_streams.frames.evaluation import to_polars
from millrace_streams.graph import Aggregator, GroupTableNode, TableFoldNode
from millrace_streams.layout import Layout
from millrace_streams.steps.batch import TIMESTAMP, Batch
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.groups import fold_groups, group
from millrace_streams.steps.map_values import reserved_of
from millrace_streams.steps.named_folds import NamedFold
from millrace_streams.steps.operator import (
    AnyStoreSpec,
    Operator,
    State,
    StatelessStep,
    checked,
    keys_as_columns,
    typed,
)
from millrace_streams.steps.results import result_conversion
from millrace_streams.stores import KeyValueStore, StoreSpec

_NOTHING: Final = (None, None)


@dataclass(frozen=True)
class GroupTableStep(StatelessStep):
    """Step of a ``GroupTableNode``.

    A row that stays in its group gives one change. A row that moves gives two, the subtraction from its old group first
    (KIP-904). A half without key or value is left out, and so are changes of versions that are not the newest.
    """

    def run(self, inputs: Inputs, state: State) -> Output:
        """Emit the changes under their groups' keys."""
        batch, out = inputs.batch, Emitted()
        news = self._selected(batch, batch.values, inputs)
        olds = self._selected(batch, batch.olds, inputs)
        times, add = batch.times, out.add
        latest = batch.latest if self.operator.versioned[0] else None
        for row, ((new_key, new), (old_key, old)) in enumerate(zip(news, olds, strict=True)):
            if latest is not None and not latest[row]:
                out.dropped += 1
                continue
            is_there, was_there = new_key is not None and new is not None, old_key is not None and old is not None
            if is_there and was_there and new_key == old_key:
                add(row, new_key, new, times[row], old)
                continue
            if was_there:
                add(row, old_key, None, times[row], old)
            if is_there:
                add(row, new_key, new, times[row])
        return typed(self.operator.node, out.output(self.operator.result), inputs)

    def _selected(self, batch: Batch, values: list[Any], inputs: Inputs) -> list[tuple[Any, Any]]:
        node = self.operator.node
        assert isinstance(node, GroupTableNode)
        if node.selector is None:
            frame, result = batch.with_values(values).frame, self.operator.result
            columns = frame.with_columns(**{name: to_polars(expression) for name, expression in node.columns})
            selected = Batch.of_frame(result, columns.select(*result.names, *reserved_of(frame)))
            rows = zip(values, selected.keys, selected.values, strict=True)
            return [_NOTHING if given is None else (key, value) for given, key, value in rows]
        pairs = inputs.call_present(node.name, node.selector, batch.keys, values)
        with inputs.blaming(node.name, node.selector) as place:
            keys, selected_values = [], []
            for place.turn, pair in enumerate(pairs):
                key, value = _NOTHING if pair is None else pair
                keys.append(key)
                selected_values.append(value)
        keys = keys_as_columns(inputs, node.name, self.operator.result, keys, range(batch.height))
        return list(zip(keys, selected_values, strict=True))


@dataclass(frozen=True)
class TableFoldStep:
    """Step of a ``TableFoldNode``.

    The step subtracts the old value from the aggregate of its group and adds the new value to that of its group. A
    group that does not exist has nothing to subtract. A result of None deletes the group.
    """

    operator: Operator

    @cached_property
    def named(self) -> NamedFold | None:
        """The named aggregates, if the node has them."""
        return NamedFold.of(self.operator)

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The store of the aggregates."""
        return (StoreSpec(name=self.node.store, kind="key_value", layout=self._kept),)

    @property
    def _kept(self) -> Layout:
        return self.operator.result if self.named is None else self.named.layout

    def run(self, inputs: Inputs, state: State) -> Output:
        """Subtract and add, group by group."""
        node, batch = self.node, inputs.batch
        store = state.stores[node.store]
        assert isinstance(store, KeyValueStore)
        groups = group(batch, np.arange(batch.height))
        store.want(groups.keys)
        taken = batch.take(groups.rows)
        news, olds = self._halves(taken)
        adder, subtractor = self._functions
        convert = self._conversion

        def add(key: Any, first: int, end: int, aggregate: Any, results: list[Any]) -> None:
            append = results.append
            for new, old in zip(news[first:end], olds[first:end], strict=True):
                if old is not None and aggregate is not None:
                    aggregate = subtractor(key, old, aggregate)
                if new is not None:
                    aggregate = self._begun(key, new) if aggregate is None else adder(key, new, aggregate)
                if convert is not None:
                    aggregate = convert(key, aggregate)
                append(aggregate)

        with inputs.blaming(node.name, "adder or subtractor") as place:
            folded = fold_groups(
                groups,
                taken.times,
                place,
                load=lambda key, start: store.get(key),
                add=add,
                save=lambda key, start, value, time_ms: store.put(key, value, time_ms),
            )
        times = pl.Series(TIMESTAMP, folded.times, dtype=pl.Int64)
        keyed = taken.with_times(times).with_values(folded.results, self._kept)
        changes = keyed.with_changes(self._kept, folded.befores if node.sends_old else None, None)
        output = Output(changes, groups.rows)
        if node.emit == "last":
            output = output.last_of_keys()
        if self.named is None:
            fit = checked if self._kept.scalar else typed
            return fit(node, output, inputs).in_order()
        return replace(output, batch=self.named.results(output.batch)).in_order()

    @cached_property
    def _conversion(self) -> ValueConversion | None:
        """Conversion of a result to the aggregate that the next call gets; None for named aggregates."""
        return result_conversion(self._kept) if self.named is None else None

    def _halves(self, batch: Batch) -> tuple[list[Any], list[Any]]:
        """Return the added and the subtracted value of each row; None where there is none."""
        if self.named is None:
            return batch.values, batch.olds
        halves = []
        for half in (batch, batch.with_values(batch.olds)):
            lifted = zip(half.present, self.named.lifted(half), strict=True)
            halves.append([entry if is_there else None for is_there, entry in lifted])
        return halves[0], halves[1]

    @cached_property
    def _functions(self) -> tuple[Aggregator, Aggregator]:
        """Adder and subtractor."""
        if self.named is None:
            assert self.node.adder is not None
            assert self.node.subtractor is not None
            return self.node.adder, self.node.subtractor
        together, remove = self.named.add, self.named.remove
        return lambda key, new, entry: together(entry, new), lambda key, old, entry: remove(entry, old)

    def _begun(self, key: Any, new: Any) -> Any:
        """Return the aggregate of a first value."""
        initializer = self.node.initializer
        return new if initializer is None else self._functions[0](key, new, initializer())

    @property
    def node(self) -> TableFoldNode:
        """The node."""
        node = self.operator.node
        assert isinstance(node, TableFoldNode)
        return node
