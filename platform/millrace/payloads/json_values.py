"""Conversion of single JSON values to column values.

An error gives the reason of a failure. Strings convert from strings and numbers from numbers, without guesses.
Timestamps, dates and durations are strings in the forms of RFC 3339 and ISO 8601. Bytes are base64. Decimals are
numbers or strings that lose no digit. Floats are numbers, or one of the strings ``"NaN"``, ``"Infinity"`` and
``"-Infinity"``. The results of this module are the reference for the faster ways of reading.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import cache
from json import scanner
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from millrace.schemas.types import DURATION, TIMESTAMP, spark_name

Leaf: TypeAlias = Callable[[Any], Any]
"""Function that converts a value for ``pa.array``. Raises one of ``MISFITS`` for a value that does not fit."""
MISFITS: Final = (ValueError, ArithmeticError)

_LARGE: Final = 4 * 2**20
"""Number of characters beyond which json's scanner in C would stop all other threads for too long, up to 0.2 s."""
_SHOWN_MAX: Final = 60

_DURATION: Final = re.compile(
    r"([+-]?)P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6}))?S)?)?",
    re.ASCII,
)
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
"""Floats without a number in JSON, as Spark's ``to_json`` writes and ``from_json`` reads them."""
_TIME: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,9}))?)?", re.ASCII)
_DECIMAL: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


class NotAValueError(ValueError):
    """A JSON value does not fit its column. The text gives the reason."""


def parse_json(text: bytes | str) -> Any:
    """Parse a JSON text, of UTF-8 if it is bytes, with exact numbers. Raises ``NotAValueError``."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")  # json.loads would also take UTF-16 and UTF-32
        if text.startswith("\ufeff"):
            raise ValueError("it begins with two byte order marks")
        return decoder_of(len(text), _number).decode(text)
    except (ValueError, RecursionError) as error:
        raise NotAValueError(f"it is not JSON: {error}") from None


def _number(text: str) -> Decimal | float:
    """Parse a number with a point or an exponent. An exponent that no decimal has gives 0.0 or infinity."""
    try:
        return Decimal(text)
    except DecimalException:
        return float(text)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


# The stubs lack it, but json.scanner has it for interpreters without the scanner in C.
_scanner_in_python: Final[Callable[[json.JSONDecoder], Any]] = getattr(scanner, "py_make_scanner")  # noqa: B009


@cache
def _decoder(parse_float: Callable[[str], Any], *, is_large: bool) -> json.JSONDecoder:
    decoder = json.JSONDecoder(parse_float=parse_float, parse_constant=_refuse_constant)
    if is_large:
        vars(decoder)["scan_once"] = _scanner_in_python(decoder)
    return decoder


def decoder_of(size: int, parse_float: Callable[[str], Any]) -> json.JSONDecoder:
    """Return a decoder of texts of a size. A large text takes it ten times as long, but other threads run meanwhile."""
    return _decoder(parse_float, is_large=size > _LARGE)


def value_of(value: Any, data_type: pa.DataType, path: str) -> Any:
    """Return a value that ``pa.array`` accepts for the column. Raises ``NotAValueError`` naming the path."""
    if value is None:
        return None
    if pat.is_struct(data_type):
        return struct_of(_expect(value, dict, data_type, path), list(data_type), path)
    if pat.is_list(data_type):
        elements = _expect(value, list, data_type, path)
        return [field_of(each, data_type.value_field, f"{path}.element") for each in elements]
    if pat.is_map(data_type):
        members = _expect(value, dict, data_type, path)
        return [
            (value_of(name, pa.string(), f"{path}.key"), field_of(each, data_type.item_field, f"{path}.{name}"))
            for name, each in members.items()
        ]
    try:
        return leaf_of(data_type)(value)
    except MISFITS:
        if pat.is_string(data_type) and type(value) is str:
            raise NotAValueError(f"{path}: the text has half of a surrogate pair") from None
        raise _misfit(_whole(value) if pat.is_integer(data_type) else value, data_type, path) from None


def field_of(value: Any, field: pa.Field, path: str) -> Any:
    """Return the value for ``pa.array``, null only if the field is nullable."""
    if value is None and not field.nullable:
        raise NotAValueError(f"{path}: it is missing, or null")
    return value_of(value, field.type, path)


def struct_of(value: dict[str, Any], fields: list[pa.Field], path: str) -> dict[str, Any]:
    """Return an object's properties that are columns; others are ignored."""
    prefix = f"{path}." if path else ""
    return {each.name: field_of(value.get(each.name), each, prefix + each.name) for each in fields}


def _expect(value: Any, kind: type, data_type: pa.DataType, path: str) -> Any:
    if type(value) is not kind:
        raise _misfit(value, data_type, path)
    return value


def _misfit(value: Any, data_type: pa.DataType, path: str) -> NotAValueError:
    shown = ""
    for part in json.JSONEncoder(default=str).iterencode(value):
        shown += part
        if len(shown) > _SHOWN_MAX:
            shown = shown[: _SHOWN_MAX - 3] + "..."
            break
    return NotAValueError(f"{path}: {shown} is not a valid {spark_name(data_type)}")


def leaf_of(data_type: pa.DataType) -> Leaf:
    """Return the conversion of values, which are not null, to a type that is not nested."""
    if pat.is_boolean(data_type):
        return _boolean
    if pat.is_string(data_type):
        return _text
    if pat.is_integer(data_type):
        return _integers(data_type.bit_width)
    if pat.is_floating(data_type):
        return _floats(3.4028235677973366e38 if pat.is_float32(data_type) else 1.7976931348623157e308)
    if pat.is_decimal(data_type):
        return _decimals(data_type.precision, data_type.scale)
    return _texts(_reader(data_type))


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError
    value.encode()  # raises UnicodeEncodeError for half of a surrogate pair
    return value


def _whole(value: Any) -> Any:
    """Return a decimal as an integer if it is one, and any other value as it is."""
    if type(value) is Decimal and value.is_finite() and value.adjusted() < 20 and value == int(value):
        return int(value)
    return value


def _integers(bits: int) -> Leaf:
    limit = 1 << (bits - 1)

    def convert(value: Any) -> int:
        if type(value) is Decimal:
            value = _whole(value)
        if type(value) is not int or not -limit <= value < limit:
            raise ValueError
        return value

    return convert


def _floats(most: float) -> Leaf:
    def convert(value: Any) -> float:
        if type(value) is str and value in _NO_NUMBERS:
            return float(value)
        if type(value) not in (int, float, Decimal):
            raise ValueError
        number = float(value)
        if abs(number) > most:
            raise OverflowError
        return number

    return convert


def _decimals(precision: int, scale: int) -> Leaf:
    # The trapped signals are raised for a number that loses a digit after the point, or has too many before it.
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        if type(value) not in (int, Decimal) and not (type(value) is str and _DECIMAL.fullmatch(value)):
            raise ValueError
        return Decimal(value).quantize(unit, context=exact)

    return convert


def _texts(read: Callable[[str], Any]) -> Leaf:
    def convert(value: Any) -> Any:
        if type(value) is not str:
            raise ValueError
        return read(value)

    return convert


def _reader(data_type: pa.DataType) -> Callable[[str], Any]:
    """Return the reader of a type that is text in JSON."""
    if pat.is_binary(data_type):
        return _bytes
    if pat.is_date(data_type):
        return date.fromisoformat
    if pat.is_time(data_type):
        return nanoseconds
    if data_type == DURATION:
        return microseconds
    return _instant if data_type == TIMESTAMP else _local_time


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError
    return instant.astimezone(UTC)  # raises outside the years 1 to 9999


def _local_time(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is not None:
        raise ValueError
    return instant


def nanoseconds(text: str) -> int:
    """Parse a time of day into nanoseconds since midnight. Raises ``ValueError``."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    hours, minutes, seconds, fraction = found.groups(default="0")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 10**9 + int(fraction.ljust(9, "0"))


def microseconds(text: str) -> int:
    """Parse a duration in ISO 8601, without years and months, into microseconds of 64 bits. Raises ``ValueError``."""
    found = _DURATION.fullmatch(text)
    if found is None or text[-1] in "PT":
        raise ValueError(text)
    sign, *numbers, fraction = found.groups(default="0")
    weeks, days, hours, minutes, seconds = map(int, numbers)
    whole = (((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60 + seconds
    number = whole * 10**6 + int(fraction.ljust(6, "0"))
    number = -number if sign == "-" else number
    if not -(2**63) <= number < 2**63:
        raise ValueError(text)
    return number
