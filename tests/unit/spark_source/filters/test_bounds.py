"""Tests of bounds.

A value within the bounds can match, and one outside cannot. Limits are those of the matching values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_millrace.filters.bounds import NO_LIMITS, Bounds, can_match, limits_of
from pyspark_millrace.filters.condition import (
    NEVER,
    Comparator,
    Comparison,
    Condition,
    Conjunction,
    Disjunction,
    Matching,
    Membership,
    NullCheck,
    TextMatch,
)
from pyspark_millrace.filters.literals import BoundLiteral

LOW, HIGH = 10, 20
NUMBERS = range(31)
"""All values there are. An unknown bound is the first or the last of them."""
BELOW_AT_ABOVE = [LOW - 1, LOW, LOW + 1, HIGH - 1, HIGH, HIGH + 1]
IS_TRUE: dict[Comparator, Callable[[Any, Any], bool]] = {
    Comparator.EQUAL: operator.eq,
    Comparator.UNEQUAL: operator.ne,
    Comparator.LESS: operator.lt,
    Comparator.LESS_OR_EQUAL: operator.le,
    Comparator.GREATER: operator.gt,
    Comparator.GREATER_OR_EQUAL: operator.ge,
    Comparator.SAME: operator.eq,
    Comparator.NOT_SAME: operator.ne,
}


def number(value: int) -> BoundLiteral:
    return BoundLiteral(value, value)


def compared(with_: Comparator, value: int, column: str = "n") -> Comparison:
    return Comparison(column, with_, number(value))


def matches(condition: Condition, bounds: Bounds | None) -> bool:
    return can_match(condition, lambda _: bounds)


@pytest.mark.parametrize("low", [LOW, HIGH, None])
@pytest.mark.parametrize("high", [HIGH, None])
@pytest.mark.parametrize("compares", Comparator)
def test_a_number_can_match_if_some_number_within_the_bounds_does(
    compares: Comparator, low: int | None, high: int | None
) -> None:
    within = [each for each in NUMBERS if (low is None or low <= each) and (high is None or each <= high)]
    for value in BELOW_AT_ABOVE:
        expected = any(IS_TRUE[compares](each, value) for each in within)
        bounds = Bounds(low, high, may_be_null=False)
        assert matches(compared(compares, value), bounds) == expected, value
        membership = Membership("n", (number(value),))
        assert matches(membership, bounds) == any(each == value for each in within), value


@pytest.mark.parametrize("compares", Comparator)
def test_limits_are_the_least_and_the_greatest_number_that_match(compares: Comparator) -> None:
    for value in BELOW_AT_ABOVE:
        found = [each for each in NUMBERS if IS_TRUE[compares](each, value)]
        low = min(found) if min(found) != NUMBERS[0] else None
        high = max(found) if max(found) != NUMBERS[-1] else None
        assert limits_of(compared(compares, value), "n", lambda _: None) == (low, high)


def test_several_conditions_limit_a_column_together() -> None:
    def limits(condition: Condition, bounds: Bounds | None = None) -> tuple[int | None, int | None]:
        return limits_of(condition, "n", lambda column: bounds if column == "other" else None)

    at_least, at_most = compared(Comparator.GREATER_OR_EQUAL, 5), compared(Comparator.LESS_OR_EQUAL, 9)
    other = compared(Comparator.EQUAL, 1, "other")
    assert limits(other) == NO_LIMITS
    assert limits(NullCheck("n", True)) == NO_LIMITS
    assert limits(Membership("n", (number(7), number(3), number(5)))) == (3, 7)
    assert limits(Membership("n", (number(7),), negated=True)) == NO_LIMITS
    assert limits(Membership("n", (), has_null=True)) == NO_LIMITS
    assert limits(Conjunction((at_least, at_most, other))) == (5, 9)
    assert limits(Conjunction((at_least, compared(Comparator.GREATER_OR_EQUAL, 7)))) == (7, None)
    assert limits(Conjunction((at_most, compared(Comparator.LESS_OR_EQUAL, 7)))) == (None, 7)
    assert limits(Disjunction((compared(Comparator.EQUAL, 3), compared(Comparator.EQUAL, 8)))) == (3, 8)
    assert limits(Disjunction((at_least, compared(Comparator.EQUAL, 8)))) == (5, None)
    assert limits(Disjunction((at_most, compared(Comparator.EQUAL, 8)))) == (None, 9)
    # A term that other columns exclude does not count.
    impossible = Conjunction((compared(Comparator.EQUAL, 1), other))
    assert limits(Disjunction((impossible, compared(Comparator.EQUAL, 8))), Bounds(2, 2)) == (8, 8)
    assert limits(Disjunction((impossible, compared(Comparator.EQUAL, 8))), Bounds(1, 2)) == (1, 8)
    assert limits(NEVER) == NO_LIMITS


@pytest.mark.parametrize(
    ("compares", "text", "expected"),
    [
        (Comparator.EQUAL, b"aa", False), (Comparator.EQUAL, b"ab", True), (Comparator.EQUAL, b"bz", True),
        (Comparator.EQUAL, b"c", False), (Comparator.SAME, b"bz", True), (Comparator.SAME, b"c", False),
        (Comparator.GREATER, b"ab", True), (Comparator.GREATER, b"bz", True), (Comparator.GREATER, b"c", False),
        (Comparator.GREATER_OR_EQUAL, b"bzz", True), (Comparator.GREATER_OR_EQUAL, b"c", False),
        (Comparator.LESS, b"ab", False), (Comparator.LESS, b"aba", True), (Comparator.LESS_OR_EQUAL, b"ab", True),
        (Comparator.LESS_OR_EQUAL, b"aa", False), (Comparator.UNEQUAL, b"b", True),
    ],
)  # fmt: skip
def test_the_largest_text_may_be_longer_than_the_prefix_that_is_known(
    compares: Comparator, text: bytes, expected: bool
) -> None:
    bounds = Bounds(b"ab", b"b", may_be_null=False, is_prefix=True)
    assert matches(Comparison("t", compares, BoundLiteral(text.decode(), text)), bounds) is expected


def test_equal_bounds_leave_one_value_unless_the_upper_one_is_a_prefix() -> None:
    unequal = Comparison("t", Comparator.UNEQUAL, BoundLiteral("b", b"b"))
    assert not matches(unequal, Bounds(b"b", b"b", may_be_null=False))
    assert matches(unequal, Bounds(b"b", b"b", may_be_null=False, is_prefix=True))
    assert matches(unequal, Bounds(None, b"b", may_be_null=False))
    assert matches(unequal, Bounds(b"b", None, may_be_null=False))


@pytest.mark.parametrize(
    ("matching", "text", "expected"),
    [
        (Matching.STARTS, "a", False), (Matching.STARTS, "b", True), (Matching.STARTS, "bc", True),
        (Matching.STARTS, "bcd", True), (Matching.STARTS, "bb", False), (Matching.STARTS, "d", True),
        (Matching.STARTS, "db", False), (Matching.STARTS, "e", False), (Matching.STARTS, "", True),
        (Matching.STARTS, "c%", True),
        (Matching.ENDS, "e", True), (Matching.CONTAINS, "e", True),
        (Matching.LIKE, "e", False), (Matching.LIKE, "e%", False), (Matching.LIKE, "%e", True),
        (Matching.LIKE, "_e", True), (Matching.LIKE, "e_%", False), (Matching.LIKE, "e%_", False),
        (Matching.LIKE, "\\e", True), (Matching.LIKE, "c%e\\", True), (Matching.LIKE, "b_", True),
        (Matching.LIKE, "bb_", False), (Matching.LIKE, "bb\\%", False), (Matching.LIKE, "da_x%", True),
        (Matching.LIKE, "da%x_", True), (Matching.LIKE, "dax_", False), (Matching.LIKE, "c", True),
    ],
)  # fmt: skip
def test_a_text_can_match_if_something_within_the_bounds_begins_so(
    matching: Matching, text: str, expected: bool
) -> None:
    bounds = Bounds(b"bcd", b"da", may_be_null=False)
    assert matches(TextMatch("t", matching, text), bounds) is expected
    assert matches(TextMatch("t", matching, text, negated=True), bounds)
    assert matches(TextMatch("t", matching, text), Bounds(None, None))


def test_nulls_match_what_is_true_for_nulls_and_nothing_else() -> None:
    only_nulls, no_nulls = Bounds(None, None, may_have_values=False), Bounds(1, 9, may_be_null=False)
    is_null, is_not_null = NullCheck("n", True), NullCheck("n", False)
    assert (matches(is_null, only_nulls), matches(is_null, no_nulls)) == (True, False)
    assert (matches(is_not_null, only_nulls), matches(is_not_null, no_nulls)) == (False, True)
    assert matches(compared(Comparator.NOT_SAME, 5), only_nulls)
    assert matches(compared(Comparator.NOT_SAME, 5), Bounds(5, 5))
    assert not matches(compared(Comparator.NOT_SAME, 5), Bounds(5, 5, may_be_null=False))
    assert not matches(compared(Comparator.UNEQUAL, 5), Bounds(5, 5))
    for compares in set(Comparator) - {Comparator.NOT_SAME}:
        assert not matches(compared(compares, 5), only_nulls)
    assert not matches(Membership("n", (number(5),), negated=True), only_nulls)
    assert matches(Membership("n", (number(5),), negated=True), Bounds(5, 5))
    assert not matches(TextMatch("t", Matching.ENDS, "x"), only_nulls)
    assert not matches(Membership("n", ()), no_nulls)


def test_conjunctions_need_all_and_disjunctions_one_matching_condition() -> None:
    true, false = compared(Comparator.EQUAL, 5), compared(Comparator.EQUAL, 50)
    bounds = Bounds(5, 5, may_be_null=False)
    for terms, every, some in (((true, false), False, True), ((true, true), True, True), ((false,), False, False)):
        assert matches(Conjunction(terms), bounds) is every
        assert matches(Disjunction(terms), bounds) is some
    assert matches(false, None)
