"""Predicates on the rows of a batch: expressions or Python functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from millrace_streams.errors import UserFunctionError
from millrace_streams.expressions import Expression
from millrace_streams.frames.evaluation import to_polars
from millrace_streams.functions import PythonFunction
from millrace_streams.steps.batch import Batch, Rows
from millrace_streams.steps.flow import Inputs


def rows_passing(
    predicate: Expression | PythonFunction,
    batch: Batch,
    inputs: Inputs,
    node: str,
    *,
    negate: bool = False,
    turns: Sequence[int] | None = None,
) -> list[int] | Rows:
    """Return the numbers of the rows for which a predicate is true; null counts as false. Raises ``UserFunctionError``.

    ``turns`` are those of the batch's rows, if the batch is not the step's input itself.
    """
    if isinstance(predicate, Expression):
        passed = batch.frame.select(to_polars(predicate).fill_null(False)).to_series()
    elif predicate.batchwise:
        passed = call_batchwise(predicate, batch, inputs, node)
        if not isinstance(passed, pl.Series) or passed.dtype != pl.Boolean or len(passed) != batch.height:
            raise UserFunctionError(f"{node}: {predicate} must return a boolean polars series of {batch.height} rows")
        passed = passed.fill_null(False)
    else:
        turns = turns if turns is not None else range(batch.height)
        results = inputs.call(node, predicate, turns, batch.keys, batch.values)
        return [row for row, result in enumerate(results) if bool(result) != negate]
    return (~passed if negate else passed).arg_true().to_numpy()


def call_batchwise(function: PythonFunction, batch: Batch, inputs: Inputs, node: str) -> Any:
    """Call a function with a whole frame. Raises ``UserFunctionError``."""
    try:
        return function.call(batch.frame.select(batch.layout.names))
    except Exception as error:
        text = f"{function} raised {type(error).__name__}: {error} (batch of {batch.height} records, this is the first)"
        raise inputs.failure(node, text, 0) from error
