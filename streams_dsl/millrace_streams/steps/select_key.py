"""Key selection: existing columns, expressions that become columns, or a Python function."""

from __future__ import annotations

from dataclasses import dataclass

from millrace_streams.frames.evaluation import to_polars
from millrace_streams.graph import SelectKeyFunctionNode, SelectKeyNode
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.flow import Inputs, Output
from millrace_streams.steps.map_values import reserved_of
from millrace_streams.steps.operator import State, StatelessStep, typed


@dataclass(frozen=True)
class SelectKeyStep(StatelessStep):
    """Step of a ``SelectKeyNode``."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Compute the key columns."""
        node = self.operator.node
        assert isinstance(node, SelectKeyNode)
        frame, result = inputs.batch.frame, self.operator.result
        computed = frame.with_columns(**{name: to_polars(expression) for name, expression in node.columns})
        return Output(Batch.of_frame(result, computed.select(*result.names, *reserved_of(frame))))


@dataclass(frozen=True)
class SelectKeyFunctionStep(StatelessStep):
    """Step of a ``SelectKeyFunctionNode``."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Call the function."""
        node = self.operator.node
        assert isinstance(node, SelectKeyFunctionNode)
        keys = inputs.call_rows(node.name, node.function)
        return typed(node, Output(inputs.batch.with_keys(keys, self.operator.result)), inputs)
