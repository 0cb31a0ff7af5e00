"""Type checks for the results of user functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import polars as pl

from millrace_streams.errors import UserFunctionError
from millrace_streams.frames.cells import ValueConversion, cell_conversion, value_conversion
from millrace_streams.frames.codec import columns_of, key_columns_of
from millrace_streams.layout import Layout
from millrace_streams.steps.batch import Batch

MISFITS: Final = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,  # of some lists with structs that do not fit
    TypeError,
    ValueError,
    KeyError,
    OverflowError,
    AttributeError,
)


class MisfitError(Exception):
    """Result of a user's function that does not fit its layout.

    The message is that of ``check_types``.
    """


def result_conversion(layout: Layout, what: str = "the function's result") -> ValueConversion:
    """Return the conversion of a function's results, by key, to values as stored and read back; None stays None.

    It raises ``MisfitError``.
    """
    convert, convert_cell = value_conversion(layout), None
    if layout.value:
        convert_cell = cell_conversion(layout.schema.field(layout.value))

    def converted(key: Any, value: Any) -> Any:
        if value is None:
            return None
        try:
            # A bare value saves a call, because folds convert each result.
            return convert(key, value) if convert_cell is None else convert_cell(value)
        except MISFITS as error:
            raise MisfitError(_misfit(layout, key, value, error, what, "value=...")) from error

    return converted


def check_types(
    node: str,
    batch: Batch,
    what: str = "the function's result",
    failure: Callable[[str, int | None], UserFunctionError] | None = None,
) -> None:
    """Check that a batch's values fit its columns by converting them. Raises ``UserFunctionError`` naming ``node``.

    ``failure`` creates the error from a text and the row in the batch.
    """
    try:
        batch.frame  # noqa: B018 - the conversion is the check
    except MISFITS as error:
        text, row = _culprit(batch, error, what)
        raise (failure(text, row) if failure is not None else UserFunctionError(f"{node}: {text}")) from error


def _culprit(batch: Batch, error: Exception, what: str) -> tuple[str, int | None]:
    """Find the wrong value by converting the values one by one; returns the error text and the row."""
    layout = batch.layout
    for row, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
        try:
            columns_of(layout, [key], [value])
        except MISFITS as reason:
            remedy = "key=..." if _is_key(batch, key) else "value=..."
            return _misfit(layout, key, value, reason, what, remedy), row
    return f"the function's results do not fit their columns: {error}", None


def _misfit(layout: Layout, key: object, value: Any, reason: Exception, what: str, remedy: str) -> str:
    if not layout.scalar and value is not None and not isinstance(value, dict):
        return f"the function must return a dict of {', '.join(layout.value_columns)}, not {value!r}"
    if isinstance(reason, KeyError):
        return f"the function returned no column {reason.args[0]}; it returned {', '.join(map(str, value))}"
    wanted = layout.schema.field(layout.value).type if layout.value is not None else "the row's types"
    why = str(reason).partition("\n")[0]
    return f"{what} {value!r} under key {key!r} does not fit {wanted}: {why}: give its type, {remedy}"


def _is_key(batch: Batch, key: object) -> bool:
    """Return whether the key is the wrong part."""
    try:
        key_columns_of(batch.layout, [key])
    except MISFITS:
        return True
    return False
