"""Pruning: whether a condition can be true for columns within bounds.

The module also computes the offsets or times that a condition admits.

Invariant: nothing is excluded that could be true. Unknown counts as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from millrace.records.statistics import Value


@dataclass(frozen=True, slots=True)
class Bounds:
    """Known bounds of a column.

    ``low`` and ``high`` bound the values, both inclusive (None: unknown). With ``is_prefix`` the upper end is a prefix
    of the largest value. The column may have nulls only if ``may_be_null``, and values only if ``may_have_values``.
    """

    low: Value | None
    high: Value | None
    may_be_null: bool = True
    may_have_values: bool = True
    is_prefix: bool = False


BoundsOf = Callable[[str], Bounds | None]
"""Returns the known bounds of a column, None if nothing is known."""


def exactly(value: Value) -> Bounds:
    """Return the bounds of a column with one constant value."""
    return Bounds(value, value, may_be_null=False)


def can_match(expression: Condition, bounds_of: BoundsOf) -> bool:
    """Return whether a bound condition can be true for a row within the bounds."""
    if isinstance(expression, Conjunction):
        return all(can_match(term, bounds_of) for term in expression.terms)
    if isinstance(expression, Disjunction):
        return any(can_match(term, bounds_of) for term in expression.terms)
    bounds = bounds_of(expression.column)
    return bounds is None or _leaf_can_match(expression, bounds)


def _leaf_can_match(leaf: Leaf, bounds: Bounds) -> bool:
    if isinstance(leaf, NullCheck):
        return bounds.may_be_null if leaf.is_null else bounds.may_have_values
    if isinstance(leaf, Comparison) and leaf.operator is Comparator.NOT_SAME and bounds.may_be_null:
        return True
    if not bounds.may_have_values:
        return False
    if isinstance(leaf, Membership):
        return leaf.negated or any(_reaches(bounds, Comparator.EQUAL, each.stored) for each in leaf.values)
    if isinstance(leaf, TextMatch):
        return leaf.negated or _may_begin(bounds, _beginning(leaf).encode())
    return _reaches(bounds, leaf.operator, leaf.value.stored)


def _reaches(bounds: Bounds, operator: Comparator, value: Any) -> bool:
    low: Any = bounds.low
    high: Any = bounds.high
    if operator in (Comparator.UNEQUAL, Comparator.NOT_SAME):
        return bounds.is_prefix or low is None or high is None or not low == high == value
    if operator is Comparator.LESS:
        return low is None or low < value
    if operator is Comparator.LESS_OR_EQUAL:
        return low is None or low <= value
    if operator is Comparator.GREATER and not bounds.is_prefix:
        return high is None or high > value
    reached = high is None or high >= (value[: len(high)] if bounds.is_prefix else value)
    if operator in (Comparator.EQUAL, Comparator.SAME):
        return reached and (low is None or low <= value)
    return reached


def _beginning(leaf: TextMatch) -> str:
    """Return the prefix that a matching text must have."""
    if leaf.matching is Matching.STARTS:
        return leaf.text
    if leaf.matching is not Matching.LIKE:
        return ""
    ends = [place for sign in "%_\\" if (place := leaf.text.find(sign)) >= 0]
    return leaf.text[: min(ends, default=len(leaf.text))]


def _may_begin(bounds: Bounds, beginning: bytes) -> bool:
    low: Any = bounds.low
    return (low is None or low[: len(beginning)] <= beginning) and _reaches(
        bounds, Comparator.GREATER_OR_EQUAL, beginning
    )


# --- limits of one column ------------------------------------------------------------------------------------------

ValueRange = tuple[int | None, int | None]
"""Smallest and largest whole number that a condition admits, both inclusive. None means no limit."""

NO_LIMITS: Final[ValueRange] = (None, None)


def limits_of(expression: Condition, column: str, bounds_of: BoundsOf) -> ValueRange:
    """Return the values of an integer column for which a condition can be true, with other columns within bounds."""
    if isinstance(expression, Conjunction):
        return _intersection([limits_of(term, column, bounds_of) for term in expression.terms])
    if isinstance(expression, Disjunction):
        return _hull([limits_of(term, column, bounds_of) for term in expression.terms if can_match(term, bounds_of)])
    if expression.column != column:
        return NO_LIMITS
    if isinstance(expression, Membership) and not expression.negated and expression.values:
        stored = [each.stored for each in expression.values]
        return min(stored), max(stored)
    return _compared_limits(expression) if isinstance(expression, Comparison) else NO_LIMITS


def _compared_limits(leaf: Comparison) -> ValueRange:
    value = leaf.value.stored
    return {
        Comparator.EQUAL: (value, value),
        Comparator.SAME: (value, value),
        Comparator.LESS: (None, value - 1),
        Comparator.LESS_OR_EQUAL: (None, value),
        Comparator.GREATER: (value + 1, None),
        Comparator.GREATER_OR_EQUAL: (value, None),
    }.get(leaf.operator, NO_LIMITS)


def _intersection(found: Sequence[ValueRange]) -> ValueRange:
    lows = [low for low, _ in found if low is not None]
    highs = [high for _, high in found if high is not None]
    return max(lows, default=None), min(highs, default=None)


def _hull(found: Sequence[ValueRange]) -> ValueRange:
    lows = [low for low, _ in found]
    highs = [high for _, high in found]
    low = None if None in lows else min((each for each in lows if each is not None), default=None)
    high = None if None in highs else max((each for each in highs if each is not None), default=None)
    return low, high
