"""Named aggregates: the results of ``aggregate`` per key and window, as data.

All of them skip nulls of their column, as SQL does. Each aggregate is kept as a few accumulators, of which only the
newest value is stored. ``millrace_streams.steps.accumulators`` computes them.

    >>> aggregate(departures=count(), mean_delay=mean("dep_delay"))    # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millrace_streams.expressions import Expression, col


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Aggregate:
    """Base of all aggregates.

    ``argument`` is the aggregated expression, or None if whole records are aggregated.
    """

    kind: ClassVar[str]
    argument: Expression | None = None

    def columns(self) -> frozenset[str]:
        """Return the names of the columns that the aggregate reads."""
        return self.argument.columns() if self.argument is not None else frozenset()

    def __repr__(self) -> str:
        """Return the source form."""
        return f"{self.kind}({'' if self.argument is None else repr(self.argument)})"


class Count(Aggregate):
    """Number of records, or of records with a value. A long, never null."""

    __slots__ = ()
    kind = "count"


class Sum(Aggregate):
    """Sum of the values of an expression.

    The sum is a long for whole numbers, with Java's overflow, and otherwise a double. Without a value the sum is null.

    Doubles are added in record order, so the result has the same bits for any division of the records into batches.
    """

    __slots__ = ()
    kind = "sum"


class Mean(Aggregate):
    """Arithmetic mean, a double; null without a value."""

    __slots__ = ()
    kind = "mean"


class Min(Aggregate):
    """Smallest value; null without one. NaN is larger than any number, as in Spark."""

    __slots__ = ()
    kind = "min"


class Max(Aggregate):
    """Largest value; null without one. NaN is larger than any number, as in Spark."""

    __slots__ = ()
    kind = "max"


def count(column: str | Expression | None = None) -> Aggregate:
    """Count records, or those in which ``column`` is not null."""
    return Count(None if column is None else _argument(column))


def sum(column: str | Expression) -> Aggregate:  # (named as in SQL; used as millrace_streams.sum)
    """Sum a column."""
    return Sum(_argument(column))


def mean(column: str | Expression) -> Aggregate:
    """Average a column."""
    return Mean(_argument(column))


def min(column: str | Expression) -> Aggregate:
    """Find the smallest value of a column."""
    return Min(_argument(column))


def max(column: str | Expression) -> Aggregate:
    """Find the largest value of a column."""
    return Max(_argument(column))


def _argument(column: str | Expression) -> Expression:
    return col(column) if isinstance(column, str) else column
