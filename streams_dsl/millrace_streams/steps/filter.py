"""Filter and branch steps: the records for which a predicate is true."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace_streams.graph import BranchNode, FilterNode
from millrace_streams.steps.flow import Inputs, Output
from millrace_streams.steps.operator import State, StatelessStep
from millrace_streams.steps.predicates import rows_passing


@dataclass(frozen=True)
class FilterStep(StatelessStep):
    """Step of a ``FilterNode``."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Keep the rows that pass."""
        node = self.operator.node
        assert isinstance(node, FilterNode)
        batch = inputs.batch
        rows = rows_passing(node.predicate, batch, inputs, node.name, negate=node.negate)
        return Output(batch.take(rows), rows)


@dataclass(frozen=True)
class BranchStep(StatelessStep):
    """Step of a ``BranchNode``.

    The branch takes the records for which its predicate is true and that no earlier branch took.
    """

    def run(self, inputs: Inputs, state: State) -> Output:
        """Keep the rows of this branch."""
        node = self.operator.node
        assert isinstance(node, BranchNode)
        batch = inputs.batch
        left = np.ones(batch.height, dtype=np.bool_)
        for predicate in node.earlier:
            left[rows_passing(predicate, batch, inputs, node.name)] = False
        if node.predicate is not None:
            own = np.zeros_like(left)
            own[rows_passing(node.predicate, batch, inputs, node.name)] = True
            left &= own
        rows = np.flatnonzero(left)
        return Output(batch.take(rows), rows)
