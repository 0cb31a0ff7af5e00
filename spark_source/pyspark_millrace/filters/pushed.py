"""Conversion of Spark's pushed filters to conditions.

Spark no longer applies a filter that the source takes. So only filters with exactly the same meaning are taken, and all
others stay with Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import datasource as spark

from pyspark_millrace.columns import TopicColumn
from pyspark_millrace.filters.binding import bind
from pyspark_millrace.filters.condition import (
    Comparator,
    Condition,
    Matching,
    Membership,
    NullCheck,
    TextMatch,
    compare,
    conjunction,
    negate,
)
from pyspark_millrace.filters.literals import UnfitLiteralError

_OPERATORS: Final = {
    spark.EqualTo: Comparator.EQUAL,
    spark.EqualNullSafe: Comparator.SAME,
    spark.GreaterThan: Comparator.GREATER,
    spark.GreaterThanOrEqual: Comparator.GREATER_OR_EQUAL,
    spark.LessThan: Comparator.LESS,
    spark.LessThanOrEqual: Comparator.LESS_OR_EQUAL,
}
_MATCHINGS: Final = {
    spark.StringStartsWith: Matching.STARTS,
    spark.StringEndsWith: Matching.ENDS,
    spark.StringContains: Matching.CONTAINS,
}


def split_pushed(
    filters: Sequence[spark.Filter], columns: Mapping[str, TopicColumn]
) -> tuple[Condition | None, list[spark.Filter]]:
    """Return the condition of the filters that the source takes, and the filters that stay with Spark."""
    taken, left = [], []
    for each in filters:
        try:
            taken.append(bind(_expression(each), columns))
        except UnfitLiteralError:
            left.append(each)
    return conjunction(*taken), left


def _expression(pushed: spark.Filter) -> Condition:
    if isinstance(pushed, spark.Not):
        return negate(_expression(pushed.child))
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(path) != 1:
        raise UnfitLiteralError(f"{pushed} does not concern a top-level column")
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
