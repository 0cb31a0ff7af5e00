"""Column expressions of the DSL: an immutable tree without an engine.

An expression defines a computation on the columns of a record. ``millrace_streams.frames.evaluation`` runs it in
polars. Because an expression is data, it can be printed (``describe``), asked for its columns (pushdown) and sent to a
worker.

The semantics are SQL's: a null operand gives null, except for ``&`` and ``|`` (three-valued logic), ``is_null`` and
``coalesce``. ``/`` is true division; ``//`` and ``%`` round down as in Python; integer division by zero gives null.

    >>> (col("dep_delay") > 15) & col("origin").is_in(["JFK", "LGA"])
    ((dep_delay > 15) & origin.is_in('JFK', 'LGA'))
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from millrace_streams.errors import TopologyError

Scalar: TypeAlias = bool | int | float | str | bytes | dt.datetime | dt.date | None
Operand: TypeAlias = "Expression | Scalar"

TYPE_NAMES: Final = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp"}
)
"""Type names for ``cast``, which are those of Spark's DDL."""

TIME_PARTS: Final = ("year", "month", "day", "hour", "minute", "second", "day_of_week", "day_of_year", "milliseconds")
"""Units for ``part``."""
TIME_UNITS: Final = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
"""Units for ``truncate``."""

LEFT: Final = "left."
RIGHT: Final = "right."
"""Prefixes of the columns of both sides in a join's expressions; key columns have no prefix."""

_SYMBOLS: Final = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",
    "modulo": "%",
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and": "&",
    "or": "|",
}


class Expression:
    """Base of all expressions; its operators and methods build larger ones.

    ``==`` builds a comparison, so ``same_as`` compares the structure of expressions. Python's ``and``, ``or`` and
    ``not`` cannot be overloaded and raise an error; use ``&``, ``|`` and ``~`` with parentheses.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        """Refuse use as a truth value. Raises ``TopologyError``."""
        raise TopologyError(
            f"the expression {self!r} has no truth value: combine expressions with &, | and ~, not with and, or, not"
        )

    def __add__(self, other: Operand) -> Expression:
        """``self + other``; concatenates strings."""
        return _call("add", self, other)

    def __radd__(self, other: Operand) -> Expression:
        """``other + self``."""
        return _call("add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        """``self - other``."""
        return _call("subtract", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        """``other - self``."""
        return _call("subtract", other, self)

    def __mul__(self, other: Operand) -> Expression:
        """``self * other``."""
        return _call("multiply", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        """``other * self``."""
        return _call("multiply", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        """``self / other``, a double."""
        return _call("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        """``other / self``, a double."""
        return _call("divide", other, self)

    def __floordiv__(self, other: Operand) -> Expression:
        """``self // other``, rounded down."""
        return _call("floor_divide", self, other)

    def __mod__(self, other: Operand) -> Expression:
        """``self % other``, with the sign of ``other``."""
        return _call("modulo", self, other)

    def __neg__(self) -> Expression:
        """``-self``."""
        return _call("negate", self)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        """``self == other``; null if an operand is null."""
        return _call("equal", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        """``self != other``; null if an operand is null."""
        return _call("not_equal", self, other)

    def __lt__(self, other: Operand) -> Expression:
        """``self < other``."""
        return _call("less", self, other)

    def __le__(self, other: Operand) -> Expression:
        """``self <= other``."""
        return _call("less_equal", self, other)

    def __gt__(self, other: Operand) -> Expression:
        """``self > other``."""
        return _call("greater", self, other)

    def __ge__(self, other: Operand) -> Expression:
        """``self >= other``."""
        return _call("greater_equal", self, other)

    def __and__(self, other: Operand) -> Expression:
        """``self & other``; false if one operand is false, even if the other is null."""
        return _call("and", self, other)

    def __or__(self, other: Operand) -> Expression:
        """``self | other``; true if one operand is true, even if the other is null."""
        return _call("or", self, other)

    def __invert__(self) -> Expression:
        """``~self``, the negation."""
        return _call("not", self)

    def is_null(self) -> Expression:
        """Test for null."""
        return _call("is_null", self)

    def is_not_null(self) -> Expression:
        """Test for a value that is not null."""
        return _call("is_not_null", self)

    def is_in(self, values: Iterable[Scalar]) -> Expression:
        """Test whether the value is one of ``values``; null gives null."""
        return _call("is_in", self, *values)

    def between(self, low: Operand, high: Operand) -> Expression:
        """Test whether the value is from ``low`` to ``high``, both inclusive."""
        return (self >= low) & (self <= high)

    def cast(self, type_name: str) -> Expression:
        """Convert the value to another type, named as in Spark's DDL; null if it cannot be converted.

        Texts of dates and timestamps have the forms of ISO 8601, ``2013-01-31`` or ``2013-01-31 12:30:05.5+01:00``. A
        timestamp without a zone is in UTC. Texts of booleans are those of Spark: ``true``, ``t``, ``yes``, ``y``, ``1``
        and their opposites. Raises ``TopologyError`` for an unknown type name. The compiler refuses conversions without
        a meaning.
        """
        if type_name not in TYPE_NAMES:
            raise TopologyError(f"cast to {type_name!r}: not a type; one of {', '.join(sorted(TYPE_NAMES))}")
        return Cast(self, type_name)

    def absolute(self) -> Expression:
        """Return the absolute value."""
        return _call("absolute", self)

    def lower(self) -> Expression:
        """Convert a string to lower case."""
        return _call("lower", self)

    def upper(self) -> Expression:
        """Convert a string to upper case."""
        return _call("upper", self)

    def length(self) -> Expression:
        """Return the number of characters of a string."""
        return _call("length", self)

    def starts_with(self, prefix: str) -> Expression:
        """Test whether the string begins with ``prefix``."""
        return _call("starts_with", self, prefix)

    def contains(self, part: str) -> Expression:
        """Test whether the string contains ``part``, taken literally."""
        return _call("contains", self, part)

    def ends_with(self, suffix: str) -> Expression:
        """Test whether the string ends with ``suffix``."""
        return _call("ends_with", self, suffix)

    def trim(self) -> Expression:
        """Remove white space at both ends of a string."""
        return _call("trim", self)

    def substring(self, position: int, length: int) -> Expression:
        """Return ``length`` characters of a string from ``position``: 1 is the first, -1 the last. Raises
        ``TopologyError`` for 0.
        """
        if position == 0:
            raise TopologyError("substring from position 0: 1 is the first character, -1 the last")
        return _call("substring", self, position, length)

    def split_part(self, separator: str, number: int) -> Expression:
        """Return the part with this number between separators: 1 is the first, -1 the last; empty if there are fewer
        parts.
        """
        if number == 0 or not separator:
            raise TopologyError(
                f"split_part({separator!r}, {number}): needs a separator, and parts begin with 1, or -1"
            )
        return _call("split_part", self, separator, number)

    def matches(self, pattern: str) -> Expression:
        """Test whether a regular expression matches a part of the string."""
        return _call("matches", self, pattern)

    def extract(self, pattern: str, group: int = 1) -> Expression:
        """Return the match of a group of a regular expression (0: the whole match); null without a match."""
        return _call("extract", self, pattern, group)

    def replace(self, pattern: str, replacement: str) -> Expression:
        """Replace all matches of a regular expression; ``$1`` in the replacement stands for a group."""
        return _call("replace", self, pattern, replacement)

    def round(self, digits: int = 0) -> Expression:
        """Round to a number of digits, halves away from zero."""
        return _call("round", self, digits)

    def field(self, name: str) -> Expression:
        """Return a field of a struct."""
        return _call("field", self, name)

    def part(self, unit: str) -> Expression:
        """Return a part of a date or timestamp (in UTC) as a number: its year, month, day, hour, ...

        ``day_of_week`` is 1 for Sunday, as in Spark; ``milliseconds`` counts from 1970. Raises ``TopologyError`` for
        another unit.
        """
        if unit not in TIME_PARTS:
            raise TopologyError(f"part({unit!r}): not a part of a time; one of {', '.join(TIME_PARTS)}")
        return _call("part", self, unit)

    def truncate(self, unit: str) -> Expression:
        """Truncate to the start of the second, minute, hour, day, week (Monday), month, quarter or year.

        Raises ``TopologyError`` for another unit.
        """
        if unit not in TIME_UNITS:
            raise TopologyError(f"truncate({unit!r}): not a unit of time; one of {', '.join(TIME_UNITS)}")
        return _call("truncate", self, unit)

    def alias(self, name: str) -> Alias:
        """Name the column of the expression, for names that cannot be keywords (``name``, ``schema``)."""
        return Alias(self, name)

    def same_as(self, other: Expression) -> bool:
        """Return whether two expressions have the same structure."""
        return repr(self) == repr(other)

    def columns(self) -> frozenset[str]:
        """Return the names of the columns that the expression reads."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Column(Expression):
    """The value of a column."""

    name: str

    def columns(self) -> frozenset[str]:
        """Return the column itself."""
        return frozenset({self.name})

    def __repr__(self) -> str:
        """Return the bare name."""
        return self.name


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Literal(Expression):
    """A constant."""

    value: Scalar

    def columns(self) -> frozenset[str]:
        """Return no columns."""
        return frozenset()

    def __repr__(self) -> str:
        """Return the constant in Python's form."""
        return repr(self.value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Expression):
    """Conversion of a value to another type."""

    operand: Expression
    type_name: str

    def columns(self) -> frozenset[str]:
        """Return the columns of the operand."""
        return self.operand.columns()

    def __repr__(self) -> str:
        """Return the source form."""
        return f"{self.operand!r}.cast({self.type_name!r})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Expression):
    """An operation, by name, on operands; ``frames.evaluation`` lists the operations."""

    operation: str
    operands: tuple[Expression, ...]

    def columns(self) -> frozenset[str]:
        """Return the columns of all operands."""
        return frozenset[str]().union(*(operand.columns() for operand in self.operands))

    def __repr__(self) -> str:
        """Return the source form: infix for operators, otherwise a method call."""
        symbol = _SYMBOLS.get(self.operation)
        if symbol is not None:
            left, right = self.operands
            return f"({left!r} {symbol} {right!r})"
        first, *rest = self.operands
        return f"{first!r}.{self.operation}({', '.join(map(repr, rest))})"


@dataclass(frozen=True, slots=True)
class Alias:
    """An expression with a column name; not an expression itself."""

    expression: Expression
    name: str


def col(name: str) -> Column:
    """Refer to a column of the stream."""
    return Column(name)


def left(name: str = "value") -> Column:
    """Refer to a column of a join's left side; the default is the value of a topic of single values."""
    return Column(f"{LEFT}{name}")


def right(name: str = "value") -> Column:
    """Refer to a column of a join's right side; null without a matching record."""
    return Column(f"{RIGHT}{name}")


def lit(value: Scalar) -> Literal:
    """Make a constant, where a plain Python value would not start an expression."""
    return Literal(value)


def coalesce(*operands: Operand) -> Expression:
    """Return the first operand that is not null."""
    if not operands:
        raise TopologyError("coalesce needs at least one operand")
    return _call("coalesce", *operands)


def when(condition: Expression, then: Operand, otherwise: Operand = None) -> Expression:
    """Return ``then`` if the condition is true, and ``otherwise`` if it is false or null."""
    return _call("when", condition, then, otherwise)


def expression_of(value: Any) -> Expression:
    """Return an expression unchanged, and anything else as a constant. Raises ``TopologyError`` for an invalid
    constant.
    """
    if isinstance(value, Expression):
        return value
    if value is None or isinstance(value, bool | int | float | str | bytes | dt.datetime | dt.date):
        return Literal(value)
    raise TopologyError(f"{value!r} ({type(value).__name__}) cannot be part of a column expression")


def _call(operation: str, *operands: object) -> Expression:
    return Call(operation, tuple(expression_of(operand) for operand in operands))
