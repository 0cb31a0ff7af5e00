"""Evaluation of column expressions in polars, with their result types.

``to_polars`` is the only definition of an expression's meaning on data. ``result_types`` asks polars for the types, so
that the compiler and the steps cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, cast

import polars as pl
import pyarrow as pa

from millrace_streams.errors import TopologyError
from millrace_streams.expressions import Call, Cast, Column, Expression, Literal
from millrace_streams.frames import casts

_OPERATIONS: Final[dict[str, Callable[..., pl.Expr]]] = {
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left - right,
    "multiply": lambda left, right: left * right,
    "divide": lambda left, right: left / right,
    "floor_divide": lambda left, right: left // right,
    "modulo": lambda left, right: left % right,
    "negate": lambda value: -value,
    "absolute": lambda value: value.abs(),
    "equal": lambda left, right: left == right,
    "not_equal": lambda left, right: left != right,
    "less": lambda left, right: left < right,
    "less_equal": lambda left, right: left <= right,
    "greater": lambda left, right: left > right,
    "greater_equal": lambda left, right: left >= right,
    "and": lambda left, right: left & right,
    "or": lambda left, right: left | right,
    "not": lambda value: ~value,
    "is_null": lambda value: value.is_null(),
    "is_not_null": lambda value: value.is_not_null(),
    "is_in": lambda value, *others: (
        pl.any_horizontal([value == other for other in others]) if others else value.is_null() & value.is_not_null()
    ),
    "lower": lambda value: value.str.to_lowercase(),
    "upper": lambda value: value.str.to_uppercase(),
    "length": lambda value: value.str.len_chars().cast(pl.Int32),
    "starts_with": lambda value, prefix: value.str.starts_with(prefix),
    "contains": lambda value, part: value.str.contains(part, literal=True),
    "coalesce": lambda *values: pl.coalesce(*values),
    "when": lambda condition, then, otherwise: pl.when(condition).then(then).otherwise(otherwise),
}

_PARTS: Final[dict[str, Callable[[pl.Expr], pl.Expr]]] = {
    "year": lambda time: time.dt.year(),
    "month": lambda time: time.dt.month(),
    "day": lambda time: time.dt.day(),
    "hour": lambda time: time.dt.hour(),
    "minute": lambda time: time.dt.minute(),
    "second": lambda time: time.dt.second(),
    "day_of_week": lambda time: time.dt.weekday() % 7 + 1,
    "day_of_year": lambda time: time.dt.ordinal_day(),
}
_UNITS: Final = {
    "second": "1s",
    "minute": "1m",
    "hour": "1h",
    "day": "1d",
    "week": "1w",
    "month": "1mo",
    "quarter": "1q",
    "year": "1y",
}


@lru_cache(maxsize=256)
def _regular(pattern: str) -> str:
    """Check a regular expression and return it. Raises ``TopologyError`` if polars does not accept it."""
    try:
        pl.select(pl.lit("").str.contains(pattern))
    except pl.exceptions.PolarsError as error:
        raise TopologyError(f"{pattern!r} is not a regular expression: {error}") from error
    return pattern


_WITH_CONSTANTS: Final[dict[str, Callable[..., pl.Expr]]] = {
    "ends_with": lambda value, suffix: value.str.ends_with(suffix),
    "trim": lambda value: value.str.strip_chars(),
    "substring": lambda value, position, length: value.str.slice(position - (position > 0), length),
    "split_part": lambda value, separator, number: pl.when(value.is_not_null()).then(
        value.str.split(separator).list.get(number - (number > 0), null_on_oob=True).fill_null("")
    ),
    "matches": lambda value, pattern: value.str.contains(_regular(pattern)),
    "extract": lambda value, pattern, group: value.str.extract(_regular(pattern), group),
    "replace": lambda value, pattern, replacement: value.str.replace_all(_regular(pattern), replacement),
    "round": lambda value, digits: value.round(digits, mode="half_away_from_zero"),
    "field": lambda value, name: value.struct.field(name),
    "part": lambda value, unit: (
        value.dt.timestamp("ms") if unit == "milliseconds" else _PARTS[unit](value).cast(pl.Int32)
    ),
    "truncate": lambda value, unit: value.dt.truncate(_UNITS[unit]),
}
"""Operations whose only expression operand is the first one."""


def to_polars(expression: Expression) -> pl.Expr:
    """Convert an expression to polars."""
    match expression:
        case Column(name):
            return pl.col(name)
        case Literal(value):
            return pl.lit(value)
        case Cast(operand, type_name):
            return casts.cast(to_polars(operand), type_name)
        case Call(operation, (operand, *constants)) if operation in _WITH_CONSTANTS:
            told = [constant.value for constant in constants if isinstance(constant, Literal)]
            return _WITH_CONSTANTS[operation](to_polars(operand), *told)
        case Call(operation, operands):
            return _OPERATIONS[operation](*(to_polars(operand) for operand in operands))
    raise TopologyError(f"{type(expression).__name__} is not an expression that millrace knows")


def result_types(expressions: Sequence[pl.Expr], schema: pl.Schema, node: str) -> list[pl.DataType]:
    """Return the types of expressions over ``schema``. Raises ``TopologyError`` naming ``node`` if they do not fit."""
    named = [expression.alias(f"c{place}") for place, expression in enumerate(expressions)]
    try:
        frame = pl.DataFrame(schema=schema)
        return list(frame.select(named).schema.values())
    except pl.exceptions.PolarsError as error:
        raise TopologyError(f"{node}: the expression does not fit its columns' types: {error}") from error


@lru_cache(maxsize=512)
def polars_schema(schema: pa.Schema) -> pl.Schema:
    """Return the polars types of an Arrow schema's columns in the steps."""
    return cast("pl.DataFrame", pl.from_arrow(schema.empty_table())).schema


def arrow_type(data_type: pl.DataType) -> pa.DataType:
    """Return the Arrow type of a polars type, in the small forms (string, not large_string) of Spark and topics."""
    exported = pl.DataFrame(schema={"c": data_type}).to_arrow(compat_level=pl.CompatLevel.oldest())
    return _small(exported.schema.field(0).type)


def to_arrow(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """Convert a frame to an Arrow table of exactly this schema; columns are taken by name."""
    table = frame.select(schema.names).to_arrow(compat_level=pl.CompatLevel.oldest())
    return table.cast(schema)


def _small(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(data_type):
        return pa.string()
    if pa.types.is_large_binary(data_type):
        return pa.binary()
    if pa.types.is_large_list(data_type) or pa.types.is_list(data_type):
        return pa.list_(_small(data_type.value_type))
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_small(field.type)) for field in data_type])
    return data_type
