"""The steps that keep no state: filter, map, select_key, to_stream, as functions from batch to batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import polars as pl

from millrace_streams.errors import TopologyError, UserFunctionError
from millrace_streams.functions import PythonFunction
from millrace_streams.graph import FilterNode, MapFunctionNode, MapValuesNode, Node, SelectKeyNode, ToStreamNode
from millrace_streams.layout import VALUE, Layout
from millrace_streams.steps.evaluation import polars_schema, to_polars
from millrace_streams.steps.records import OFFSET, RESERVED, TIMESTAMP

STATELESS = (FilterNode, MapValuesNode, MapFunctionNode, SelectKeyNode, ToStreamNode)
"""The kinds of node that this module can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A node with the layouts of what it reads and what it gives: all that a step must know."""

    node: Node
    given: Layout
    result: Layout


def run_stateless(operator: Operator, batch: pl.DataFrame) -> pl.DataFrame:
    """Run a stateless operator on a batch. Raises ``UserFunctionError`` when a Python function fails."""
    return _run(operator.node, operator, batch)


@singledispatch
def _run(node: Node, operator: Operator, batch: pl.DataFrame) -> pl.DataFrame:
    raise TopologyError(f"{node.name}: {type(node).__name__} is not a stateless step")


@_run.register
def _(node: FilterNode, operator: Operator, batch: pl.DataFrame) -> pl.DataFrame:
    if isinstance(node.predicate, PythonFunction):
        passed = _predicate(node, node.predicate, operator.given, batch)
        return batch.filter(~passed if node.negate else passed)
    passing = to_polars(node.predicate).fill_null(False)
    return batch.filter(~passing if node.negate else passing)


@_run.register
def _(node: MapValuesNode, operator: Operator, batch: pl.DataFrame) -> pl.DataFrame:
    computed = batch.with_columns(**{name: to_polars(expression) for name, expression in node.columns})
    return computed.select(*operator.result.names, *RESERVED)


@_run.register
def _(node: SelectKeyNode, operator: Operator, batch: pl.DataFrame) -> pl.DataFrame:
    computed = batch.with_columns(**{name: to_polars(expression) for name, expression in node.columns})
    return computed.select(*operator.result.names, *RESERVED)


@_run.register
def _(node: ToStreamNode, operator: Operator, batch: pl.DataFrame) -> pl.DataFrame:
    return batch


@_run.register
def _(node: MapFunctionNode, operator: Operator, batch: pl.DataFrame) -> pl.DataFrame:
    given, result = operator.given, operator.result
    types = polars_schema(result.schema)
    values = {name: data_type for name, data_type in types.items() if name not in given.key}
    if node.function.batchwise:
        frame = _call_batchwise(node, node.function.call, batch.select(given.names))
        if not isinstance(frame, pl.DataFrame) or frame.height != batch.height:
            raise UserFunctionError(
                f"{node.name}: {node.function} must give a polars frame of {batch.height} rows, one per record"
            )
        computed = _as_columns(node, frame.to_dict(as_series=True), values)
    else:
        results = _call_per_record(node, node.function, given, batch)
        computed = _as_columns(node, _columns_of(node, results, list(values), scalar=result.scalar), values)
    kept = batch.select(*given.key, *RESERVED)
    return kept.with_columns(computed).select(*result.names, *RESERVED)


def _predicate(node: Node, function: PythonFunction, given: Layout, batch: pl.DataFrame) -> pl.Series:
    if not function.batchwise:
        results = [bool(result) for result in _call_per_record(node, function, given, batch)]
        return pl.Series(results, dtype=pl.Boolean)
    passed = _call_batchwise(node, function.call, batch.select(given.names))
    if not isinstance(passed, pl.Series) or passed.dtype != pl.Boolean or len(passed) != batch.height:
        raise UserFunctionError(f"{node.name}: {function} must give a boolean polars series of {batch.height} rows")
    return passed.fill_null(False)


def _call_batchwise(node: Node, call: Callable[..., Any], frame: pl.DataFrame) -> Any:
    try:
        return call(frame)
    except Exception as error:
        raise UserFunctionError(f"{node.name}: the function raised {type(error).__name__}: {error}") from error


def _call_per_record(node: Node, function: PythonFunction, given: Layout, batch: pl.DataFrame) -> list[Any]:
    keys = _bare(batch, given.key) if function.takes_key else None
    values = batch[VALUE].to_list() if given.scalar else batch.select(given.names).to_dicts()
    results = []
    for row, value in enumerate(values):
        try:
            results.append(function.call(keys[row], value) if keys is not None else function.call(value))
        except Exception as error:
            raise UserFunctionError(
                f"{node.name}: {function} raised {type(error).__name__}: {error} (record at offset "
                f"{batch[OFFSET][row]}, timestamp {batch[TIMESTAMP][row]})"
            ) from error
    return results


def _bare(batch: pl.DataFrame, key: tuple[str, ...]) -> list[Any]:
    if len(key) == 1:
        return batch[key[0]].to_list()
    return batch.select(key).rows() if key else [None] * batch.height


def _columns_of(node: Node, results: list[Any], names: list[str], *, scalar: bool) -> dict[str, Any]:
    if scalar:
        return {VALUE: results}
    for result in results:
        if not isinstance(result, dict) or not result.keys() >= set(names):
            raise UserFunctionError(f"{node.name}: the function must give a dict of {', '.join(names)}, not {result!r}")
    return {name: [result[name] for result in results] for name in names}


def _as_columns(node: Node, columns: dict[str, Any], types: dict[str, pl.DataType]) -> list[pl.Series]:
    return list(_typed_columns(node, columns, types))


def _typed_columns(node: Node, columns: dict[str, Any], types: dict[str, pl.DataType]) -> Iterator[pl.Series]:
    for name, data_type in types.items():
        if name not in columns:
            raise UserFunctionError(f"{node.name}: the function gave no column {name}; it gave {', '.join(columns)}")
        try:
            values = columns[name]
            yield (
                values.cast(data_type).alias(name)
                if isinstance(values, pl.Series)
                else pl.Series(name, values, dtype=data_type, strict=True)
            )
        except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
            raise UserFunctionError(f"{node.name}: column {name} of the function's result: {error}") from error
