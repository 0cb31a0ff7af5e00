"""How aggregates are kept: accumulators that are lifted from a record and folded into state.

Every aggregate is a few columns, each with an expression that lifts it from a record and one of three associative
folds. State rows are put before a batch's records as if they were records lifted already, so that there is one way to
fold, and doubles are added strictly in record order whatever the batches were: the results have the same bits in a
stream, in a batch and in the test driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import polars as pl
import pyarrow as pa

from millrace_streams.aggregates import Aggregate
from millrace_streams.errors import TopologyError
from millrace_streams.steps.evaluation import arrow_type, result_types, to_polars

Fold: TypeAlias = Literal["sum", "sequential_sum", "min", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """One stored column. ``name`` is stable: it is part of the state's format."""

    name: str
    data_type: pl.DataType
    lift: pl.Expr
    fold: Fold


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatedAggregate:
    """An aggregate as accumulators, and how its result is made of them."""

    name: str
    accumulators: tuple[Accumulator, ...]
    result: pl.Expr


def accumulate(name: str, aggregate: Aggregate, schema: pl.Schema, node: str) -> AccumulatedAggregate:
    """Say how an aggregate of records of ``schema`` is kept. Raises ``TopologyError`` naming ``node``."""
    if aggregate.argument is None:
        records = _sum_of(f"{name}.count", pl.lit(1, pl.Int64), pl.Int64())
        return AccumulatedAggregate(name=name, accumulators=(records,), result=result_of(name, "count"))
    argument = to_polars(aggregate.argument)
    [data_type] = result_types([argument], schema, node)
    present = _sum_of(f"{name}.count", argument.is_not_null().cast(pl.Int64), pl.Int64())
    match aggregate.kind:
        case "count":
            return AccumulatedAggregate(name=name, accumulators=(present,), result=result_of(name, "count"))
        case "sum" | "mean":
            if not data_type.is_numeric():
                raise TopologyError(f"{node}: {name}={aggregate!r}: a number is needed, not {arrow_type(data_type)}")
            total = _total(f"{name}.sum", argument, data_type, wide=aggregate.kind == "mean")
            result = result_of(name, aggregate.kind)
            return AccumulatedAggregate(name=name, accumulators=(total, present), result=result)
        case "min" | "max":
            if data_type.is_nested() or data_type == pl.Null():
                raise TopologyError(f"{node}: {name}={aggregate!r}: {arrow_type(data_type)} has no order")
            fold: Fold = "min" if aggregate.kind == "min" else "max"
            extreme = Accumulator(name=f"{name}.{fold}", data_type=data_type, lift=argument, fold=fold)
            return AccumulatedAggregate(name=name, accumulators=(extreme,), result=result_of(name, fold))
    raise TopologyError(f"{node}: {aggregate.kind} is not an aggregate that millrace knows")


def result_of(name: str, kind: str) -> pl.Expr:
    """An aggregate's result, of its accumulators."""
    match kind:
        case "sum":
            result = pl.col(f"{name}.sum")
        case "mean":
            result = pl.col(f"{name}.sum").cast(pl.Float64) / pl.col(f"{name}.count")
        case _:
            return pl.col(f"{name}.{kind}")
    return pl.when(pl.col(f"{name}.count") > 0).then(result)


def result_fields(aggregates: Sequence[tuple[str, Aggregate]], schema: pl.Schema, node: str) -> list[pa.Field]:
    """Names and types of the aggregates' results. Raises ``TopologyError`` naming ``node``."""
    fields = []
    for name, aggregate in aggregates:
        kept = accumulate(name, aggregate, schema, node)
        stored = pl.Schema({accumulator.name: accumulator.data_type for accumulator in kept.accumulators})
        [data_type] = result_types([kept.result], stored, node)
        fields.append(pa.field(name, arrow_type(data_type)))
    return fields


def _sum_of(name: str, lift: pl.Expr, data_type: pl.DataType) -> Accumulator:
    return Accumulator(name=name, data_type=data_type, lift=lift, fold="sum")


def _total(name: str, argument: pl.Expr, data_type: pl.DataType, *, wide: bool) -> Accumulator:
    """The running sum. ``wide``: of 64-bit numbers as a double, since a mean must not wrap."""
    if isinstance(data_type, pl.Decimal):
        decimal = pl.Decimal(38, data_type.scale)
        return _sum_of(name, argument.cast(decimal).fill_null(0).cast(decimal), decimal)
    if data_type.is_float() or (wide and data_type in (pl.Int64, pl.UInt64)):
        # Adding zero makes -0.0 a plain zero, which a sum that starts at zero gives anyway.
        lift = argument.cast(pl.Float64).fill_null(0.0) + 0.0
        return Accumulator(name=name, data_type=pl.Float64(), lift=lift, fold="sequential_sum")
    return _sum_of(name, argument.cast(pl.Int64).fill_null(0), pl.Int64())
