"""Another key and value for each record, or any number of them, from a Python function."""

from __future__ import annotations

from dataclasses import dataclass

from millrace_streams.graph import MapNode
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.operator import State, StatelessStep, typed


@dataclass(frozen=True)
class MapStep(StatelessStep):
    """The step of a ``MapNode``."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Call the function."""
        node = self.operator.node
        assert isinstance(node, MapNode)
        batch, out, call = inputs.batch, Emitted(), node.function.keyed
        with inputs.blaming(node.name, node.function) as place:
            rows = zip(batch.keys, batch.values, batch.times, strict=True)
            for place.turn, (key, value, time_ms) in enumerate(rows):
                pairs = call(key, value) if node.flat else (call(key, value),)
                for new_key, new_value in pairs:
                    out.add(place.turn, new_key, new_value, time_ms)
        return typed(node, out.output(self.operator.result))
