"""Casts: conversions of columns to other types, with Spark's names.

A conversion that has no meaning, such as one of a date to a boolean, is refused by the compiler. A cell that cannot be
converted gives null, as in Spark without ANSI mode.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import polars as pl

_TYPES: Final[dict[str, Any]] = {
    "boolean": pl.Boolean,
    "tinyint": pl.Int8,
    "smallint": pl.Int16,
    "int": pl.Int32,
    "bigint": pl.Int64,
    "float": pl.Float32,
    "double": pl.Float64,
    "string": pl.String,
    "binary": pl.Binary,
    "date": pl.Date,
    "timestamp": pl.Datetime("us", "UTC"),
}
_TIMES: Final = ("date", "timestamp")
_DAY: Final = r"^\s*(?<day>\d{4}-\d{1,2}-\d{1,2})"
_DATE: Final = _DAY + r"(?:[T ].*)?\s*$"
_TIMESTAMP: Final = (
    _DAY + r"(?:[T ](?<minute>\d{1,2}:\d{1,2})(?<second>:\d{1,2}(?:\.\d*)?)?\s*(?<zone>Z|UTC|[+-]\d\d:\d\d)?)?\s*$"
)
_TRUE: Final = ("true", "t", "yes", "y", "1")
_FALSE: Final = ("false", "f", "no", "n", "0")


def cast(operand: pl.Expr, type_name: str) -> pl.Expr:
    """Return the conversion of an expression to the type of this name.

    Evaluation raises polars' ``InvalidOperationError``, also without rows, for a type that cannot be converted.
    """
    # A function, because polars' expressions do not know the type of their operand.
    convert = partial(_cast, type_name=type_name)
    return operand.map_batches(convert, return_dtype=_TYPES[type_name], is_elementwise=True)


def _cast(cells: pl.Series, *, type_name: str) -> pl.Series:
    if not _may_cast(cells.dtype, type_name):
        raise pl.exceptions.InvalidOperationError(f"a column of {cells.dtype} cannot be cast to {type_name}")
    if cells.dtype == pl.String and type_name in _OF_TEXT:
        return cells.to_frame().select(_OF_TEXT[type_name](pl.col(cells.name))).to_series()
    return cells.cast(_TYPES[type_name], strict=False)


def _may_cast(source: pl.DataType, type_name: str) -> bool:
    if source.is_nested():
        return False
    if type_name == "string":
        return source != pl.Duration
    if type_name in _TIMES:
        return source not in (pl.Binary, pl.Time) and not source.is_decimal() and source != pl.Duration
    if type_name == "binary":
        return not source.is_temporal() and not source.is_decimal()
    return source != pl.Binary and not (type_name == "boolean" and source.is_temporal())


def _date(text: pl.Expr) -> pl.Expr:
    return text.str.extract(_DATE).str.to_date("%Y-%m-%d", strict=False)


def _timestamp(text: pl.Expr) -> pl.Expr:
    """Return the instants of texts; one without a zone is in UTC."""
    found = text.str.extract_groups(_TIMESTAMP).struct
    minute, second = found["minute"].fill_null("00:00"), found["second"].fill_null(":00")
    zone = found["zone"].fill_null("Z").replace(["Z", "UTC"], "+00:00")
    whole = pl.concat_str(found["day"], pl.lit(" "), minute, second.str.strip_suffix("."), zone)
    return whole.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%z", time_unit="us", strict=False)


def _boolean(text: pl.Expr) -> pl.Expr:
    word = text.str.strip_chars().str.to_lowercase()
    return pl.when(word.is_in(_TRUE)).then(True).when(word.is_in(_FALSE)).then(False)


_OF_TEXT: Final = {"boolean": _boolean, "date": _date, "timestamp": _timestamp}
"""Conversions of texts that polars does not have."""
