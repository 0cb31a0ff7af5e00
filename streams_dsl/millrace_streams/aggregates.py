"""Named aggregates: what ``aggregate`` computes per key and window, as data.

All skip nulls of their column, as SQL does. Each can be kept as a few accumulators of which only the newest value is
stored; how they are folded is the business of ``millrace_streams.steps.accumulators``.

    >>> aggregate(departures=count(), mean_delay=mean("dep_delay"))    # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millrace_streams.expressions import Expression, col


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Aggregate:
    """Base of all aggregates; ``argument`` is what is aggregated, None for the record itself."""

    kind: ClassVar[str]
    argument: Expression | None = None

    def columns(self) -> frozenset[str]:
        """Names of the columns that the aggregate reads."""
        return self.argument.columns() if self.argument is not None else frozenset()

    def __repr__(self) -> str:
        """As it was written."""
        return f"{self.kind}({'' if self.argument is None else repr(self.argument)})"


class Count(Aggregate):
    """How many records, or how many with a value. A long, never null."""

    __slots__ = ()
    kind = "count"


class Sum(Aggregate):
    """The sum: a long of whole numbers (wrapping as Java's does), else a double; null if there was no value.

    Doubles are added one after the other in record order, so the result has the same bits however the records were cut
    into batches.
    """

    __slots__ = ()
    kind = "sum"


class Mean(Aggregate):
    """The arithmetic mean, a double; null if there was no value."""

    __slots__ = ()
    kind = "mean"


class Min(Aggregate):
    """The smallest value; null if there was none. NaN counts as larger than any number, as in Spark."""

    __slots__ = ()
    kind = "min"


class Max(Aggregate):
    """The largest value; null if there was none. NaN counts as larger than any number, as in Spark."""

    __slots__ = ()
    kind = "max"


def count(column: str | Expression | None = None) -> Aggregate:
    """Count records, or those in which ``column`` is not null."""
    return Count(None if column is None else _argument(column))


def sum(column: str | Expression) -> Aggregate:  # (named as in SQL; used as millrace_streams.sum)
    """Add up a column."""
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
