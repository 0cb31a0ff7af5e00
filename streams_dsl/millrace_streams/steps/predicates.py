"""Predicates, expressions or Python functions, on the rows of a batch."""

from __future__ import annotations

from typing import Any

import polars as pl

from millrace_streams.errors import UserFunctionError
from millrace_streams.expressions import Expression
from millrace_streams.functions import PythonFunction
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.evaluation import to_polars
from millrace_streams.steps.flow import Inputs


def passing(
    predicate: Expression | PythonFunction, batch: Batch, inputs: Inputs, node: str, *, negate: bool = False
) -> pl.Series:
    """Which rows a predicate lets through; null counts as false. Raises ``UserFunctionError``."""
    if isinstance(predicate, Expression):
        passed = batch.frame.select(to_polars(predicate).fill_null(False)).to_series()
    elif predicate.batchwise:
        passed = _batchwise(predicate, batch, node)
    else:
        passed = pl.Series(_called(predicate, batch, inputs, node), dtype=pl.Boolean)
    return ~passed if negate else passed


def rows_passing(
    predicate: Expression | PythonFunction, batch: Batch, inputs: Inputs, node: str, *, negate: bool = False
) -> list[int]:
    """The numbers of the rows that a predicate lets through. Raises ``UserFunctionError``."""
    if isinstance(predicate, PythonFunction) and not predicate.batchwise:
        results = _called(predicate, batch, inputs, node)
        return [row for row, result in enumerate(results) if result != negate]
    return passing(predicate, batch, inputs, node, negate=negate).arg_true().to_list()


def call_batchwise(function: PythonFunction, frame: pl.DataFrame, node: str) -> Any:
    """Call a function with a whole frame. Raises ``UserFunctionError``."""
    try:
        return function.call(frame)
    except Exception as error:
        raise UserFunctionError(f"{node}: the function raised {type(error).__name__}: {error}") from error


def _called(function: PythonFunction, batch: Batch, inputs: Inputs, node: str) -> list[bool]:
    results = []
    with inputs.blaming(node, function) as place:
        if function.takes_key:
            for place.turn, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
                results.append(bool(function.call(key, value)))
        else:
            for place.turn, value in enumerate(batch.values):
                results.append(bool(function.call(value)))
    return results


def _batchwise(function: PythonFunction, batch: Batch, node: str) -> pl.Series:
    passed = call_batchwise(function, batch.frame.select(batch.layout.names), node)
    if not isinstance(passed, pl.Series) or passed.dtype != pl.Boolean or len(passed) != batch.height:
        raise UserFunctionError(f"{node}: {function} must give a boolean polars series of {batch.height} rows")
    return passed.fill_null(False)
