"""Exact conversion of a condition's values to the types of their columns."""

from __future__ import annotations

import contextlib
import datetime
import math
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from millrace.records.statistics import Value

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY: Final = datetime.date(1970, 1, 1)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_EXACT: Final = Context(prec=100, traps=[Inexact, InvalidOperation])


class UnfitLiteralError(ValueError):
    """Value that a column cannot be compared with.

    The text names the accepted values.
    """


@dataclass(frozen=True, slots=True)
class BoundLiteral:
    """Value of a condition in two forms.

    ``value`` has the column's type, for ``pyarrow.scalar``. ``stored`` is the form in which statistics store the value.
    """

    value: Any
    stored: Value


def parse_date(text: str) -> datetime.date:
    """Parse an ISO date. Raises ``UnfitLiteralError``."""
    try:
        return datetime.date.fromisoformat(text.strip())
    except ValueError:
        raise UnfitLiteralError(f"{text!r} is not a date such as 2024-05-17") from None


def parse_timestamp(text: str) -> datetime.datetime:
    """Parse an ISO timestamp. Raises ``UnfitLiteralError``."""
    try:
        return datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise UnfitLiteralError(f"{text!r} is not a time such as 2024-05-17T10:00:00Z") from None


def literal_of(value: Any, data_type: DataType) -> BoundLiteral:
    """Convert a value to a column's type.

    Whole numbers fit decimals and floats. Decimal numbers fit integers only without a fraction. Text fits dates and
    timestamps in ISO form, and bytes in UTF-8. Timestamps without a zone are UTC. Raises ``UnfitLiteralError``.
    """
    from pyspark.sql import types

    if isinstance(value, bool) or isinstance(data_type, types.BooleanType):
        if isinstance(value, bool) and isinstance(data_type, types.BooleanType):
            return BoundLiteral(value, int(value))
        raise _unfit(value, data_type, "TRUE or FALSE" if not isinstance(value, bool) else "no truth value")
    if isinstance(data_type, types.IntegralType):
        return _whole(value, data_type)
    if isinstance(data_type, types.FloatType | types.DoubleType):
        return _float(value, data_type)
    if isinstance(data_type, types.DecimalType):
        return _decimal(value, data_type)
    if isinstance(data_type, types.StringType):
        if isinstance(value, str) and getattr(data_type, "collation", "UTF8_BINARY") == "UTF8_BINARY":
            return BoundLiteral(value, value.encode())
        raise _unfit(value, data_type, "a 'text'")
    if isinstance(data_type, types.BinaryType):
        data = value.encode() if isinstance(value, str) else value
        if isinstance(data, bytes | bytearray):
            return BoundLiteral(bytes(data), bytes(data))
        raise _unfit(value, data_type, "a 'text' or X'hex'")
    if isinstance(data_type, types.DateType):
        return _date(value, data_type)
    if isinstance(data_type, types.TimestampType | types.TimestampNTZType):
        return _timestamp(value, data_type)
    raise UnfitLiteralError(f"{data_type.simpleString().upper()} cannot be compared: only IS NULL and IS NOT NULL")


def _unfit(value: Any, data_type: DataType, expected: str) -> UnfitLiteralError:
    return UnfitLiteralError(f"{data_type.simpleString().upper()} is compared with {expected}, not {value!r}")


def _whole(value: Any, data_type: DataType) -> BoundLiteral:
    if (
        isinstance(value, Decimal)
        and value.is_finite()
        and value.copy_abs() <= 2**63
        and value == value.to_integral_value()
    ):
        value = int(value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return BoundLiteral(value, value)
    raise _unfit(value, data_type, "a whole number")


def _float(value: Any, data_type: DataType) -> BoundLiteral:
    if isinstance(value, int | float | Decimal):
        with contextlib.suppress(OverflowError):
            number = float(value)
            if math.isfinite(number) or number == value:
                return BoundLiteral(number, number)
    raise _unfit(value, data_type, "a number of its range")


def _decimal(value: Any, data_type: Any) -> BoundLiteral:
    if isinstance(value, int | Decimal):
        try:
            unscaled = _EXACT.scaleb(Decimal(value), data_type.scale)
        except (Inexact, InvalidOperation):
            raise _unfit(value, data_type, "a number of its digits") from None
        if unscaled == unscaled.to_integral_value() and abs(unscaled) < Decimal(10) ** data_type.precision:
            whole = int(unscaled)
            digits = tuple(map(int, str(abs(whole))))
            return BoundLiteral(Decimal((int(whole < 0), digits, -data_type.scale)), whole)
    raise _unfit(value, data_type, "a number of its digits")


def _date(value: Any, data_type: DataType) -> BoundLiteral:
    day = parse_date(value) if isinstance(value, str) else value
    if isinstance(day, datetime.date) and not isinstance(day, datetime.datetime):
        return BoundLiteral(day, (day - _EPOCH_DAY).days)
    raise _unfit(value, data_type, "DATE '2024-05-17'")


def _timestamp(value: Any, data_type: DataType) -> BoundLiteral:
    from pyspark.sql.types import TimestampNTZType

    moment = parse_timestamp(value) if isinstance(value, str) else value
    has_no_zone = isinstance(data_type, TimestampNTZType)
    if not isinstance(moment, datetime.datetime) or (has_no_zone and moment.tzinfo is not None):
        raise _unfit(value, data_type, f"TIMESTAMP '2024-05-17T10:00:00{'' if has_no_zone else 'Z'}'")
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    microseconds = (aware - _EPOCH) // _MICROSECOND
    return BoundLiteral(microseconds, microseconds)
