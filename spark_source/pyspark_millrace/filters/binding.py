"""Binding of conditions to topic columns: names resolved, values converted."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millrace.errors import UsageError
from pyspark_millrace.columns import Metadata, TopicColumn
from pyspark_millrace.filters.condition import (
    Comparison,
    Condition,
    Conjunction,
    Disjunction,
    Leaf,
    Membership,
    NullCheck,
    TextMatch,
)
from pyspark_millrace.filters.literals import UnfitLiteralError, literal_of


def bind(expression: Condition, columns: Mapping[str, TopicColumn]) -> Condition:
    """Return the condition with ``BoundLiteral`` values. Raises ``UnfitLiteralError`` for a value that does not fit."""
    if isinstance(expression, Conjunction | Disjunction):
        return replace(expression, terms=tuple(bind(term, columns) for term in expression.terms))
    return _bound_leaf(expression, columns)


def bind_option(text: str, expression: Condition, columns: Mapping[str, TopicColumn], *, topics: str) -> Condition:
    """Bind the option ``filter``; raises ``UsageError`` with column and value."""
    try:
        return bind(expression, columns)
    except UnfitLiteralError as error:
        raise UsageError(f"filter={text!r}: {topics}: {error}") from None


def _bound_leaf(leaf: Leaf, columns: Mapping[str, TopicColumn]) -> Condition:
    column = _find(leaf.column, columns)

    def literal(value: Any) -> Any:
        try:
            return literal_of(value, column.type)
        except UnfitLiteralError as error:
            raise UnfitLiteralError(f"column {column.name}: {error}") from None

    if column.source is Metadata.HEADERS and not isinstance(leaf, NullCheck):
        raise UnfitLiteralError(f"column {column.name} can only be compared by IS NULL and IS NOT NULL")
    if isinstance(leaf, Comparison):
        return replace(leaf, column=column.name, value=literal(leaf.value))
    if isinstance(leaf, Membership):
        return replace(leaf, column=column.name, values=tuple(map(literal, leaf.values)))
    if isinstance(leaf, TextMatch):
        if column.type.typeName() != "string":
            raise UnfitLiteralError(f"column {column.name}: {leaf.matching} is for STRING")
        literal(leaf.text)
    return replace(leaf, column=column.name)


def _find(name: str, columns: Mapping[str, TopicColumn]) -> TopicColumn:
    """Return a column by name. Case does not matter if only one column matches."""
    if (column := columns.get(name)) is not None:
        return column
    same = [column for other, column in columns.items() if other.lower() == name.lower()]
    if len(same) == 1:
        return same[0]
    near = difflib.get_close_matches(name, columns, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the columns are {', '.join(columns)}"
    raise UnfitLiteralError(f"no column {name!r}: {hint}")
