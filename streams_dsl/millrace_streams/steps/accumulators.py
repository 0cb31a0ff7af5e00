"""Aggregates as accumulators: lifted from records, folded, and turned into results.

Every aggregate has a few accumulators. An expression lifts an accumulator from a record. One ``Fold`` folds it, both
for columns and for two single values. Steps that fold whole batches use columns. Single values serve steps whose
windows depend on each record (sessions, sliding windows, finals), and steps that subtract rows (table groups). The same
expression computes the result from the accumulators for all of them.

State rows precede a batch's records as if they were lifted records, so there is one way to fold. Doubles are added
strictly in record order for any batches. So the results have the same bits in a stream, in a batch and in the test
driver. ``docs/streams/semantics.md`` defines the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Final

import polars as pl
import pyarrow as pa

from millrace_streams.aggregates import Aggregate
from millrace_streams.errors import TopologyError
from millrace_streams.frames.evaluation import arrow_type, polars_schema, result_types, to_polars

_DIGITS_MAX: Final = 38
_MEMBER: Final = "__member"
_EXACT: Final = Context(prec=2 * _DIGITS_MAX)
_TOO_LARGE: Final = (
    f"a sum of decimals has more than {_DIGITS_MAX} digits: sum the column cast to 'double', or fewer values"
)


@dataclass(frozen=True, slots=True)
class Fold:
    """Operation that folds an accumulator's values into one; nulls are ignored.

    ``running`` folds a column up to each row. ``whole`` folds all rows; None if rows must be added in order. ``add``
    folds two values. ``remove`` reverses ``add``; None if two values do not suffice.
    """

    running: Callable[[pl.Expr], pl.Expr]
    whole: Callable[[pl.Expr], pl.Expr] | None
    add: Callable[[Any, Any], Any]
    remove: Callable[[Any, Any], Any] | None = None


def _wrapped(number: int) -> int:
    """Wrap a whole number to 64 bits, as Java's ``long`` does."""
    return (number + 2**63) % 2**64 - 2**63


def _checked(number: Decimal) -> Decimal:
    if len(number.as_tuple().digits) > _DIGITS_MAX:
        raise OverflowError(_TOO_LARGE)
    return number


def _running_max(column: pl.Expr) -> pl.Expr:
    return column.cum_max().forward_fill()


def _running_nan_max(column: pl.Expr) -> pl.Expr:
    return pl.when(column.is_nan().fill_null(False).cum_max()).then(float("nan")).otherwise(_running_max(column))


WHOLE_SUM: Final = Fold(
    running=lambda column: column.cum_sum(),
    whole=lambda column: column.sum(),
    add=lambda one, other: _wrapped(one + other),
    remove=lambda one, other: _wrapped(one - other),
)
DECIMAL_SUM: Final = Fold(
    running=lambda column: column.cum_sum(),
    whole=lambda column: column.sum(),
    add=lambda one, other: _checked(_EXACT.add(one, other)),
    remove=lambda one, other: _checked(_EXACT.subtract(one, other)),
)
DOUBLE_SUM: Final = Fold(
    running=lambda column: column.cum_sum(),
    whole=None,
    add=lambda one, other: one + other,
    remove=lambda one, other: one - other,
)
# A single value that differs from itself is NaN.
MIN: Final = Fold(
    running=lambda column: column.cum_min().forward_fill(),
    whole=lambda column: column.min(),
    add=lambda one, other: other if other < one or one != one else one,
)
MAX: Final = Fold(
    running=_running_max,
    whole=lambda column: column.max(),
    add=lambda one, other: other if other > one else one,
)
MAX_OF_FLOATS: Final = Fold(
    running=_running_nan_max,
    whole=lambda column: column.nan_max(),
    add=lambda one, other: other if other > one or other != other else one,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """One stored column. ``name`` is stable, because it is part of the state's format."""

    name: str
    data_type: pl.DataType
    lift: pl.Expr
    fold: Fold


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatedAggregate:
    """An aggregate as accumulators, with the expression of its result."""

    name: str
    accumulators: tuple[Accumulator, ...]
    result: pl.Expr


@lru_cache(maxsize=256)
def accumulate(
    aggregates: tuple[tuple[str, Aggregate], ...], schema: pa.Schema, node: str
) -> tuple[AccumulatedAggregate, ...]:
    """Return the accumulators of aggregates over records of ``schema``. Raises ``TopologyError`` naming ``node``."""
    arguments = [
        pl.lit(1, pl.Int64) if aggregate.argument is None else to_polars(aggregate.argument)
        for _, aggregate in aggregates
    ]
    types = result_types(arguments, polars_schema(schema), node)
    return tuple(
        AccumulatedAggregate(
            name=name,
            accumulators=tuple(_accumulators(name, aggregate, argument, data_type, node)),
            result=result_of(name, aggregate.kind),
        )
        for (name, aggregate), argument, data_type in zip(aggregates, arguments, types, strict=True)
    )


def _accumulators(
    name: str, aggregate: Aggregate, argument: pl.Expr, data_type: pl.DataType, node: str
) -> Iterable[Accumulator]:
    if aggregate.argument is None:
        return [_count(name, argument)]
    present = _count(name, argument.is_not_null().cast(pl.Int64))
    match aggregate.kind:
        case "count":
            return [present]
        case "sum" | "mean":
            if not data_type.is_numeric():
                raise TopologyError(f"{node}: {name}={aggregate!r}: a number is needed, not {arrow_type(data_type)}")
            return [_total(f"{name}.sum", argument, data_type, wide=aggregate.kind == "mean"), present]
        case "min" | "max":
            if data_type.is_nested() or data_type == pl.Null():
                raise TopologyError(f"{node}: {name}={aggregate!r}: {arrow_type(data_type)} has no order")
            return [_extreme(name, aggregate.kind, argument, data_type)]
    raise TopologyError(f"{node}: {aggregate.kind} is not an aggregate that millrace knows")


def result_of(name: str, kind: str) -> pl.Expr:
    """Return the expression of an aggregate's result from its accumulators."""
    match kind:
        case "sum":
            result = pl.col(f"{name}.sum")
        case "mean":
            result = pl.col(f"{name}.sum").cast(pl.Float64) / pl.col(f"{name}.count")
        case _:
            return pl.col(f"{name}.{kind}")
    return pl.when(pl.col(f"{name}.count") > 0).then(result)


@lru_cache(maxsize=256)
def result_fields(aggregates: tuple[tuple[str, Aggregate], ...], schema: pa.Schema, node: str) -> tuple[pa.Field, ...]:
    """Return names and types of the aggregates' results. Raises ``TopologyError`` naming ``node``."""
    kept = accumulate(aggregates, schema, node)
    stored = pl.Schema({each.name: each.data_type for aggregate in kept for each in aggregate.accumulators})
    types = result_types([aggregate.result for aggregate in kept], stored, node)
    return tuple(
        pa.field(aggregate.name, arrow_type(data_type)) for aggregate, data_type in zip(kept, types, strict=True)
    )


class SumTooLargeError(Exception):
    """Sum of decimals with too many digits. ``row`` is the first row up to which a group's sum has them."""

    def __init__(self, name: str, row: int) -> None:
        super().__init__(f"{name}: {_TOO_LARGE}")
        self.row = row


def check_decimals(rows: pl.DataFrame, group: Sequence[str], accumulators: Sequence[Accumulator]) -> None:
    """Check that no sum of decimals overflows, because polars wraps them when it sums groups.

    Raises ``SumTooLargeError``.
    """
    for each in accumulators:
        if each.fold is not DECIMAL_SUM or not rows.height:
            continue
        largest = max(_coefficient(found) for found in (rows[each.name].min(), rows[each.name].max()))
        if largest * rows.height < 10**_DIGITS_MAX:
            continue
        try:
            rows.select(pl.col(each.name).cum_sum().over(group))
        except pl.exceptions.ComputeError as error:
            raise SumTooLargeError(each.name, _first_overflow(rows, group, each.name)) from error


def _first_overflow(rows: pl.DataFrame, group: Sequence[str], name: str) -> int:
    """Return the first row up to which the sum of its group has too many digits."""
    groups = rows.with_row_index(_MEMBER).select(pl.col(_MEMBER).first().over(group)).to_series().to_list()
    sums: dict[int, Decimal] = {}
    for row, (number, cell) in enumerate(zip(groups, rows[name].to_list(), strict=True)):
        sums[number] = _EXACT.add(sums.get(number, Decimal(0)), cell)
        if len(sums[number].as_tuple().digits) > _DIGITS_MAX:
            return row
    raise AssertionError(f"no sum of {name} is too large")


def _coefficient(number: Any) -> int:
    """Return the digits of a decimal as a whole number."""
    return int("".join(map(str, number.as_tuple().digits))) if isinstance(number, Decimal) else 0


def _count(name: str, lift: pl.Expr) -> Accumulator:
    return Accumulator(name=f"{name}.count", data_type=pl.Int64(), lift=lift, fold=WHOLE_SUM)


def _total(name: str, argument: pl.Expr, data_type: pl.DataType, *, wide: bool) -> Accumulator:
    """Return the accumulator of a sum. With ``wide`` it sums 64-bit numbers as double, because a mean must not
    overflow.
    """
    if isinstance(data_type, pl.Decimal):
        decimal = pl.Decimal(_DIGITS_MAX, data_type.scale)
        lift = argument.cast(decimal).fill_null(0).cast(decimal)
        return Accumulator(name=name, data_type=decimal, lift=lift, fold=DECIMAL_SUM)
    if data_type.is_float() or (wide and data_type in (pl.Int64, pl.UInt64)):
        double = argument.cast(pl.Float64)
        lift = pl.when(double != 0).then(double).otherwise(0.0)
        return Accumulator(name=name, data_type=pl.Float64(), lift=lift, fold=DOUBLE_SUM)
    lift = argument.cast(pl.Int64).fill_null(0)
    return Accumulator(name=name, data_type=pl.Int64(), lift=lift, fold=WHOLE_SUM)


def _extreme(name: str, kind: str, argument: pl.Expr, data_type: pl.DataType) -> Accumulator:
    is_float = data_type.is_float()
    fold = MIN if kind == "min" else MAX_OF_FLOATS if is_float else MAX
    # A negative zero counts as zero, because their order would depend on the records' order.
    lift = pl.when(argument == 0).then(0.0).otherwise(argument) if is_float else argument
    return Accumulator(name=f"{name}.{kind}", data_type=data_type, lift=lift, fold=fold)
