"""Value mapping: column expressions, or Python functions per record or per frame."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from millrace_streams.errors import UserFunctionError
from millrace_streams.frames.evaluation import polars_schema, to_polars
from millrace_streams.graph import MapFunctionNode, MapValuesNode, Node
from millrace_streams.steps.batch import TIMESTAMP, TOMBSTONE, Batch
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.operator import State, StatelessStep, typed
from millrace_streams.steps.predicates import call_batchwise


def reserved_of(frame: pl.DataFrame) -> list[str]:
    """Return the reserved columns of a frame."""
    return [TIMESTAMP, TOMBSTONE] if TOMBSTONE in frame.columns else [TIMESTAMP]


@dataclass(frozen=True)
class MapValuesStep(StatelessStep):
    """Step of a ``MapValuesNode``: columns from expressions. A record without a value stays without one."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Compute the columns."""
        node = self.operator.node
        assert isinstance(node, MapValuesNode)
        frame = inputs.batch.frame
        computed = frame.with_columns(**{name: to_polars(expression) for name, expression in node.columns})
        result = self.operator.result
        return Output(Batch.of_frame(result, computed.select(*result.names, *reserved_of(frame))))


@dataclass(frozen=True)
class MapFunctionStep(StatelessStep):
    """Step of a ``MapFunctionNode``: values from a Python function."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Call the function."""
        node = self.operator.node
        assert isinstance(node, MapFunctionNode)
        if node.function.batchwise:
            return self._whole(inputs, node)
        if node.flat:
            return typed(node, self._flat(inputs, node), inputs)
        values = inputs.call_rows(node.name, node.function)
        return typed(node, Output(inputs.batch.with_values(values, self.operator.result)), inputs)

    def _flat(self, inputs: Inputs, node: MapFunctionNode) -> Output:
        batch, out, call = inputs.batch, Emitted(), node.function.keyed
        with inputs.blaming(node.name, node.function) as place:
            for place.turn, (key, value, time_ms) in enumerate(zip(batch.keys, batch.values, batch.times, strict=True)):
                for result in call(key, value):
                    out.add(place.turn, key, result, time_ms)
        return out.output(self.operator.result)

    def _whole(self, inputs: Inputs, node: MapFunctionNode) -> Output:
        frame, result = inputs.batch.frame, self.operator.result
        computed = call_batchwise(node.function, inputs.batch.with_layout(self.operator.given), inputs, node.name)
        if not isinstance(computed, pl.DataFrame) or computed.height != frame.height:
            raise UserFunctionError(
                f"{node.name}: {node.function} must return a polars frame of {frame.height} rows, one per record"
            )
        kept = frame.select(*self.operator.given.key_columns, *reserved_of(frame))
        types = polars_schema(result.schema)
        columns = [_column(node, computed, name, types[name]) for name in result.value_columns]
        return Output(Batch.of_frame(result, kept.with_columns(columns)))


def _column(node: Node, frame: pl.DataFrame, name: str, data_type: pl.DataType) -> pl.Series:
    if name not in frame.columns:
        raise UserFunctionError(
            f"{node.name}: the function returned no column {name}; it returned {', '.join(frame.columns)}"
        )
    try:
        return frame[name].cast(data_type)
    except pl.exceptions.PolarsError as error:
        raise UserFunctionError(f"{node.name}: column {name} of the function's result: {error}") from error
