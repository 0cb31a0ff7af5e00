"""Evaluation of conditions on Arrow columns with Spark's semantics.

Arrow orders NaN differently from Spark, so this module corrects it: NaN equals itself and is larger than every other
number. Both compare text and bytes as unsigned bytes, and -0.0 equals 0.0 in both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_millrace.filters.condition import (
    Comparator,
    Comparison,
    Condition,
    Conjunction,
    Disjunction,
    Leaf,
    Matching,
    Membership,
    NullCheck,
    TextMatch,
)

ColumnOf = Callable[[str], pa.Array]

_COMPARED: Final[dict[Comparator, Callable[[Any, Any], pa.Array]]] = {
    Comparator.EQUAL: pc.equal,
    Comparator.UNEQUAL: pc.not_equal,
    Comparator.LESS: pc.less,
    Comparator.LESS_OR_EQUAL: pc.less_equal,
    Comparator.GREATER: pc.greater,
    Comparator.GREATER_OR_EQUAL: pc.greater_equal,
    Comparator.SAME: pc.equal,
    Comparator.NOT_SAME: pc.not_equal,
}
_NAN_COUNTS: Final = (Comparator.GREATER, Comparator.GREATER_OR_EQUAL)
_MATCHED: Final[dict[Matching, Callable[[Any, str], pa.Array]]] = {
    Matching.STARTS: pc.starts_with,
    Matching.ENDS: pc.ends_with,
    Matching.CONTAINS: pc.match_substring,
    Matching.LIKE: pc.match_like,
}


def rows_matching(expression: Condition, column_of: ColumnOf, rows: int) -> pa.BooleanArray:
    """Return true for the rows for which a bound condition is true, and null where it is null."""
    if isinstance(expression, Conjunction | Disjunction):
        is_all = isinstance(expression, Conjunction)
        terms = [rows_matching(term, column_of, rows) for term in expression.terms]
        join = pc.and_kleene if is_all else pc.or_kleene
        return reduce(join, terms) if terms else pa.repeat(pa.scalar(is_all), rows)
    return _leaf(expression, column_of(expression.column))


def _leaf(leaf: Leaf, column: pa.Array) -> pa.BooleanArray:
    if isinstance(leaf, NullCheck):
        return column.is_null() if leaf.is_null else column.is_valid()
    if isinstance(leaf, TextMatch):
        found = _MATCHED[leaf.matching](column, leaf.text)
        return pc.invert(found) if leaf.negated else found
    if isinstance(leaf, Membership):
        return _membership(leaf, column)
    return _comparison(leaf, column)


def _comparison(leaf: Comparison, column: pa.Array) -> pa.BooleanArray:
    column = _comparable(column)
    found = _COMPARED[leaf.operator](column, pa.scalar(leaf.value.value, column.type))
    if pa.types.is_floating(column.type) and leaf.operator in _NAN_COUNTS:
        found = pc.or_(found, pc.is_nan(column))
    if leaf.operator in (Comparator.SAME, Comparator.NOT_SAME):
        found = found.fill_null(leaf.operator is Comparator.NOT_SAME)
    return found


def _membership(leaf: Membership, column: pa.Array) -> pa.BooleanArray:
    column = _comparable(column)
    values = pa.array([each.value for each in leaf.values], column.type)
    if pa.types.is_floating(column.type):  # is_in compares bits, and the sum of -0.0 and 0.0 is 0.0
        column, values = pc.add(column, 0.0), pc.add(values, 0.0)
    found = pc.is_in(column, values)
    # Null for nulls, and for values that are not found if the list has a null.
    known = pc.and_(column.is_valid(), found) if leaf.has_null else column.is_valid()
    found = pc.if_else(known, found, pa.scalar(None, pa.bool_()))
    return pc.invert(found) if leaf.negated else found


def _comparable(column: pa.Array) -> pa.Array:
    """Widen narrow numbers, because the wide types hold every value of the comparison."""
    if pa.types.is_integer(column.type) and column.type != pa.int64():
        return column.cast(pa.int64())
    return column.cast(pa.float64()) if pa.types.is_float32(column.type) else column
