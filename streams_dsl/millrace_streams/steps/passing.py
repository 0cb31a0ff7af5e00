"""Steps that pass records unchanged: peek, for_each, merge, to_stream, children, repartition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace_streams.graph import ForEachNode, PeekNode, RepartitionNode
from millrace_streams.layout import Layout
from millrace_streams.steps.batch import Batch, concatenate
from millrace_streams.steps.flow import CHANNEL, RELEASED, REPARTITIONS, ROOT, TURN, Inputs, Output
from millrace_streams.steps.operator import State, StatelessStep


@dataclass(frozen=True)
class PeekStep(StatelessStep):
    """Step of a ``PeekNode`` or ``ForEachNode``."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Call the function with each record."""
        node = self.operator.node
        assert isinstance(node, PeekNode | ForEachNode)
        inputs.call_rows(node.name, node.function)
        return Output(inputs.batch)


@dataclass(frozen=True)
class ToStreamStep(StatelessStep):
    """Step of a ``ToStreamNode``: changes as records, without old values."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Return the same rows."""
        return Output(inputs.batch.with_layout(self.operator.result))


@dataclass(frozen=True)
class ChildStep(StatelessStep):
    """Step of a ``ChildNode``.

    The task passes the step only the records for its child.
    """

    def run(self, inputs: Inputs, state: State) -> Output:
        """Return the same rows."""
        return Output(inputs.batch)


@dataclass(frozen=True)
class MergeStep(StatelessStep):
    """Step of a ``MergeNode``."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Return the rows of all parents, in order."""
        heights = np.cumsum([0, *(batch.height for batch in inputs.batches)])
        rows = heights[inputs.sides] + inputs.rows
        result = self.operator.result
        whole: Batch = concatenate(result, [_named(batch, result) for batch in inputs.batches])
        return Output(whole.take(rows))


def _named(batch: Batch, layout: Layout) -> Batch:
    """Return the same rows with the layout's names of key and value, because bare values may have other names."""
    given = batch.layout
    if given.value is None or layout.value is None or (given.key, given.value) == (layout.key, layout.value):
        return batch
    if not batch.in_columns:
        return Batch.of_lists(layout, batch.keys, batch.values, batch.times)
    names = dict(zip((*given.key, given.value), (*layout.key, layout.value), strict=True))
    return Batch.of_frame(layout, batch.frame.rename(names))


@dataclass(frozen=True)
class RepartitionStep(StatelessStep):
    """Step of a ``RepartitionNode``.

    Rows through a topic come after all direct rows of their record.
    """

    number: int

    def run(self, inputs: Inputs, state: State) -> Output:
        """Return the rows with a key, with their own marks."""
        node = self.operator.node
        assert isinstance(node, RepartitionNode)
        batch = inputs.batch
        rows = batch.rows_with_key() if not node.keep_null_keys else np.arange(batch.height)
        if len(rows) < batch.height:
            batch = batch.take(rows)
        marks = inputs.marks[rows]
        through = np.zeros_like(marks)
        roots = marks[:, ROOT]
        begins = np.searchsorted(roots, roots, side="left")
        through[:, ROOT] = roots
        through[:, REPARTITIONS] = marks[:, REPARTITIONS] + 1
        through[:, TURN] = np.arange(len(marks)) - begins
        through[:, CHANNEL] = self.number
        through[:, RELEASED] = marks[:, RELEASED]
        return Output(batch, marks=through)
