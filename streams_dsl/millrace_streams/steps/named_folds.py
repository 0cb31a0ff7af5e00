"""Named aggregates folded record by record, as Python objects.

Sessions, sliding windows and final results depend on each record, and table groups subtract rows. So accumulators are
lifted from a batch in columns, folded as single values, and converted to results in columns.

An entry of the store holds the results if they can be folded, and otherwise the accumulators. A mean cannot be folded,
and a sum alone does not show whether its last value was subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa

from millrace_streams.frames.evaluation import arrow_type
from millrace_streams.graph import Fold, FoldNode, TableFoldNode
from millrace_streams.layout import Layout
from millrace_streams.steps.accumulators import WHOLE_SUM, AccumulatedAggregate, Accumulator, accumulate
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.map_values import reserved_of
from millrace_streams.steps.operator import AnyStore, Operator, entries_before
from millrace_streams.steps.store import Store
from millrace_streams.stores.base import Stored


@dataclass(frozen=True)
class NamedFold:
    """Named aggregates of an operator with a ``FoldNode`` or ``TableFoldNode``."""

    operator: Operator

    @classmethod
    def of(cls, operator: Operator) -> NamedFold | None:
        """Return the named aggregates of an operator, None if it has Python functions."""
        fold = cls(operator)
        return fold if fold.node.aggregates else None

    @property
    def node(self) -> FoldNode | TableFoldNode:
        """The node."""
        node = self.operator.node
        assert isinstance(node, FoldNode | TableFoldNode)
        return node

    @cached_property
    def aggregates(self) -> tuple[AccumulatedAggregate, ...]:
        """The aggregates as accumulators."""
        return accumulate(self.node.aggregates, self.operator.given.schema, self.node.name)

    @cached_property
    def keeps_results(self) -> bool:
        """True if an entry of the store holds results instead of accumulators."""
        removes = isinstance(self.node, TableFoldNode)
        return self.node.bare or not (removes or any(each.kind == "mean" for _, each in self.node.aggregates))

    @cached_property
    def layout(self) -> Layout:
        """Layout of the entries."""
        result = self.operator.result
        if self.keeps_results:
            return result
        fields = [pa.field(each.name, arrow_type(each.data_type)) for each in self._accumulators()]
        return replace(result, schema=pa.schema([*map(result.schema.field, result.key_columns), *fields]))

    @cached_property
    def fold(self) -> Fold:
        """The aggregates as a reduction of lifted entries."""
        add = self.add
        return Fold(
            # As in Kafka Streams, a count's first change replaces 0; other aggregates have no initial value.
            initializer=(lambda: 0) if self.node.bare else None,
            aggregator=lambda key, value, aggregate: add(aggregate, value),
            merger=lambda key, one, other: add(one, other),
            reducer=add,
        )

    @cached_property
    def add(self) -> Callable[[Any, Any], Any]:
        """Function that folds two entries into one; nulls add nothing."""
        if self.node.bare:
            return WHOLE_SUM.add
        if self.keeps_results:
            folds = [(aggregate.name, aggregate.accumulators[0].fold.add) for aggregate in self.aggregates]
        else:
            folds = [(each.name, each.fold.add) for each in self._accumulators()]

        def together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
            folded = {}
            for name, add in folds:
                first, second = one[name], other[name]
                folded[name] = second if first is None else first if second is None else add(first, second)
            return folded

        return together

    def remove(self, entry: Any, other: Any) -> Any:
        """Subtract an entry from another; a sum without remaining values restarts."""
        if self.node.bare:
            return WHOLE_SUM.add(entry, -other)
        left = {each.name: entry[each.name] for each in self._accumulators()}
        for aggregate in self.aggregates:
            count = f"{aggregate.name}.count"
            for each in aggregate.accumulators if other[count] else ():
                assert each.fold.remove is not None
                left[each.name] = each.fold.remove(left[each.name] or 0, other[each.name])
            if not left[count]:
                left |= {each.name: None for each in aggregate.accumulators if each.name != count}
        return left

    def lifted(self, batch: Batch) -> list[Any]:
        """Return the entry that each row adds."""
        if self.node.bare:
            return [1] * batch.height
        kept = list(self._accumulators())
        frame = batch.frame.with_columns(each.lift.alias(each.name) for each in kept)
        if self.keeps_results:
            return frame.select(each.result.alias(each.name) for each in self.aggregates).to_dicts()
        return frame.select(each.name for each in kept).to_dicts()

    def results(self, batch: Batch) -> Batch:
        """Convert entries to rows of the table."""
        if self.node.bare:
            return batch
        names = [each.name for each in self.aggregates]
        results = [pl.col(name) for name in names] if self.keeps_results else [each.result for each in self.aggregates]
        return with_results(batch, self.operator.result, dict(zip(names, results, strict=True)))

    def lookup(self, store: AnyStore, keys: Iterable[Any]) -> dict[Any, Stored]:
        """Return the table's rows of these keys, as stored before the batch."""
        assert not isinstance(store, Store)
        found = entries_before(store, keys)
        values, times = [stored.value for stored in found.values()], [stored.timestamp for stored in found.values()]
        rows = self.results(Batch.of_lists(self.layout, list(found), values, times)).values
        return dict(zip(found, map(Stored, rows, times), strict=True))

    def _accumulators(self) -> Iterator[Accumulator]:
        return (each for aggregate in self.aggregates for each in aggregate.accumulators)


def with_results(batch: Batch, layout: Layout, results: Mapping[str, pl.Expr]) -> Batch:
    """Compute ``results``, by name, from a batch's columns, and from its old values."""
    frame = batch.frame
    computed = frame.select(*layout.key_columns, *reserved_of(frame), **results)
    olds = batch.olds
    if any(old is not None for old in olds):
        olds = with_results(batch.with_values(olds), layout, results).values
    return Batch.of_frame(layout, computed, olds=olds)
