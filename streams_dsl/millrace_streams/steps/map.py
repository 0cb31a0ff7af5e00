"""Map step: other keys and values from a Python function."""

from __future__ import annotations

from dataclasses import dataclass

from millrace_streams.graph import MapNode
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.operator import State, StatelessStep, typed


@dataclass(frozen=True)
class MapStep(StatelessStep):
    """Step of a ``MapNode``."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Call the function."""
        node = self.operator.node
        assert isinstance(node, MapNode)
        return typed(node, self._flat(inputs, node) if node.flat else self._pairs(inputs, node), inputs)

    def _pairs(self, inputs: Inputs, node: MapNode) -> Output:
        keys, values = [], []
        with inputs.blaming(node.name, node.function) as place:
            for place.turn, (key, value) in enumerate(inputs.call_rows(node.name, node.function)):
                keys.append(key)
                values.append(value)
        return Output(Batch.of_lists(self.operator.result, keys, values, inputs.batch.times))

    def _flat(self, inputs: Inputs, node: MapNode) -> Output:
        batch, out, call = inputs.batch, Emitted(), node.function.keyed
        with inputs.blaming(node.name, node.function) as place:
            rows = zip(batch.keys, batch.values, batch.times, strict=True)
            for place.turn, (key, value, time_ms) in enumerate(rows):
                for new_key, new_value in call(key, value):
                    out.add(place.turn, new_key, new_value, time_ms)
        return out.output(self.operator.result)
