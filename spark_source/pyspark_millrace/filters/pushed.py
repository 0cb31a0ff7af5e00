"""Filters that Spark pushes down, to conditions.

A filter that is taken is no more applied by Spark, so only what means the very same here is taken; all else stays
with Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import datasource as spark

from pyspark_millrace.columns import Column
from pyspark_millrace.filters.binding import bind
from pyspark_millrace.filters.expression import (
    Expression,
    Matching,
    Membership,
    NullCheck,
    Operator,
    TextMatch,
    compare,
    conjunction,
    negate,
)
from pyspark_millrace.filters.literals import UnfitLiteralError

_OPERATORS: Final = {
    spark.EqualTo: Operator.EQUAL,
    spark.EqualNullSafe: Operator.SAME,
    spark.GreaterThan: Operator.GREATER,
    spark.GreaterThanOrEqual: Operator.GREATER_OR_EQUAL,
    spark.LessThan: Operator.LESS,
    spark.LessThanOrEqual: Operator.LESS_OR_EQUAL,
}
_MATCHINGS: Final = {
    spark.StringStartsWith: Matching.STARTS,
    spark.StringEndsWith: Matching.ENDS,
    spark.StringContains: Matching.CONTAINS,
}


def split_pushed(
    filters: Sequence[spark.Filter], columns: Mapping[str, Column]
) -> tuple[Expression | None, list[spark.Filter]]:
    """What is taken of Spark's filters on these columns, and those that are left to Spark."""
    taken, left = [], []
    for each in filters:
        try:
            taken.append(bind(_expression(each), columns))
        except UnfitLiteralError:
            left.append(each)
    return conjunction(*taken), left


def _expression(pushed: spark.Filter) -> Expression:
    if isinstance(pushed, spark.Not):
        return negate(_expression(pushed.child))
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(path) != 1:
        raise UnfitLiteralError(f"{pushed} is about no column as a whole")
    (column,) = path
    kind = type(pushed)
    if kind in _OPERATORS:
        return compare(column, _OPERATORS[kind], pushed.value)
    if kind in _MATCHINGS:
        return TextMatch(column, _MATCHINGS[kind], pushed.value)
    if isinstance(pushed, spark.In):
        present = tuple(value for value in pushed.value if value is not None)
        return Membership(column, present, has_null=len(present) < len(pushed.value))
    if isinstance(pushed, spark.IsNull | spark.IsNotNull):
        return NullCheck(column, is_null=isinstance(pushed, spark.IsNull))
    raise UnfitLiteralError(f"{pushed} is not known")
