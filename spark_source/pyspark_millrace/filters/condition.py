"""Conditions on columns as data: small, frozen and picklable for every task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias


class Comparator(StrEnum):
    """Comparison of two values. ``SAME`` is ``<=>``: true for two nulls, and never null itself."""

    EQUAL = "="
    UNEQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    SAME = "<=>"
    NOT_SAME = "NOT <=>"


class Matching(StrEnum):
    """Kind of a text match."""

    STARTS = "starts with"
    ENDS = "ends with"
    CONTAINS = "contains"
    LIKE = "LIKE"


@dataclass(frozen=True, slots=True)
class Comparison:
    """``column operator value``; the value is never None."""

    column: str
    operator: Comparator
    value: Any


@dataclass(frozen=True, slots=True)
class Membership:
    """``column [NOT] IN (values)``. With ``has_null`` the list has a null, so a value that is not found gives null."""

    column: str
    values: tuple[Any, ...]
    has_null: bool = False
    negated: bool = False


@dataclass(frozen=True, slots=True)
class NullCheck:
    """``column IS [NOT] NULL``."""

    column: str
    is_null: bool


@dataclass(frozen=True, slots=True)
class TextMatch:
    """Match of a text by prefix, suffix, substring or ``LIKE``.

    A pattern of ``LIKE`` can have ``%``, ``_`` and the backslash.
    """

    column: str
    matching: Matching
    text: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Conjunction:
    """AND of all terms; true without terms."""

    terms: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Disjunction:
    """OR of all terms; false without terms."""

    terms: tuple[Condition, ...]


Leaf: TypeAlias = Comparison | Membership | NullCheck | TextMatch
Condition: TypeAlias = Leaf | Conjunction | Disjunction

NEVER: Final = Disjunction(())
"""True for no row. A comparison with null gives it."""

_NEGATED: Final = {
    Comparator.EQUAL: Comparator.UNEQUAL,
    Comparator.LESS: Comparator.GREATER_OR_EQUAL,
    Comparator.GREATER: Comparator.LESS_OR_EQUAL,
    Comparator.SAME: Comparator.NOT_SAME,
}
_OPPOSITE: Final = _NEGATED | {after: before for before, after in _NEGATED.items()}


def compare(column: str, operator: Comparator, value: Any) -> Condition:
    """Build a comparison. With null, the comparison and its negation are true for no row, except ``<=>``."""
    if value is not None:
        return Comparison(column, operator, value)
    if operator in (Comparator.SAME, Comparator.NOT_SAME):
        return NullCheck(column, is_null=operator is Comparator.SAME)
    # Null whether negated or not, which is IN with only a null.
    return Membership(column, (), has_null=True)


def negate(expression: Condition) -> Condition:
    """Return the condition that is true where this one is false; null stays null."""
    match expression:
        case Comparison(column, operator, value):
            return Comparison(column, _OPPOSITE[operator], value)
        case Membership(column, values, has_null, negated):
            return Membership(column, values, has_null, not negated)
        case NullCheck(column, is_null):
            return NullCheck(column, not is_null)
        case TextMatch(column, matching, text, negated):
            return TextMatch(column, matching, text, not negated)
        case Conjunction(terms):
            return Disjunction(tuple(map(negate, terms)))
        case Disjunction(terms):
            return Conjunction(tuple(map(negate, terms)))


def conjunction(*expressions: Condition | None) -> Condition | None:
    """Return the AND of the given conditions; None if all are None."""
    terms = tuple(expression for expression in expressions if expression is not None)
    return Conjunction(terms) if terms else None


def leaves(expression: Condition) -> Iterator[Leaf]:
    """Yield the conditions on single columns."""
    if isinstance(expression, Conjunction | Disjunction):
        for term in expression.terms:
            yield from leaves(term)
    else:
        yield expression
