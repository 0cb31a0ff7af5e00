"""Conditions on columns as data: small, frozen, picklable; they travel to every task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias


class Comparator(StrEnum):
    """How two values are compared. ``SAME`` is ``<=>``: true for two nulls, and never null itself."""

    EQUAL = "="
    UNEQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    SAME = "<=>"
    NOT_SAME = "NOT <=>"


class Matching(StrEnum):
    """How a text is matched."""

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
    """``column [NOT] IN (values)``; ``has_null``: null was among the values, so that what is not found is unknown."""

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
    """A text that begins, ends, ... so. ``LIKE`` knows ``%``, ``_`` and the backslash."""

    column: str
    matching: Matching
    text: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Conjunction:
    """All of them; true if there are none."""

    terms: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Disjunction:
    """One of them; false if there are none."""

    terms: tuple[Condition, ...]


Leaf: TypeAlias = Comparison | Membership | NullCheck | TextMatch
Condition: TypeAlias = Leaf | Conjunction | Disjunction

NEVER: Final = Disjunction(())
"""True for no row: what a comparison with null comes to."""

_NEGATED: Final = {
    Comparator.EQUAL: Comparator.UNEQUAL,
    Comparator.LESS: Comparator.GREATER_OR_EQUAL,
    Comparator.GREATER: Comparator.LESS_OR_EQUAL,
    Comparator.SAME: Comparator.NOT_SAME,
}
_OPPOSITE: Final = _NEGATED | {after: before for before, after in _NEGATED.items()}


def compare(column: str, operator: Comparator, value: Any) -> Condition:
    """A comparison; with null it is true for no row, and neither is its negation, but for ``<=>``."""
    if value is not None:
        return Comparison(column, operator, value)
    if operator in (Comparator.SAME, Comparator.NOT_SAME):
        return NullCheck(column, is_null=operator is Comparator.SAME)
    # Unknown, whether negated or not: IN of nothing but a null says just that.
    return Membership(column, (), has_null=True)


def negate(expression: Condition) -> Condition:
    """The condition that is true where this one is false; null stays null."""
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
    """All that are there; None if none is."""
    terms = tuple(expression for expression in expressions if expression is not None)
    return Conjunction(terms) if len(terms) > 1 else next(iter(terms), None)


def leaves(expression: Condition) -> Iterator[Leaf]:
    """The conditions on single columns within."""
    if isinstance(expression, Conjunction | Disjunction):
        for term in expression.terms:
            yield from leaves(term)
    else:
        yield expression
