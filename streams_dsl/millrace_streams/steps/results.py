"""Results of users' functions: that they are what the topology says they are."""

from __future__ import annotations

import polars as pl

from millrace_streams.errors import UserFunctionError
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.codec import columns_of


def check_types(node: str, batch: Batch, what: str = "the function's result") -> None:
    """Make the batch's columns, and so see whether its values fit. Raises ``UserFunctionError`` naming ``node``."""
    try:
        batch.frame  # noqa: B018 - making it is the check
    except (pl.exceptions.PolarsError, TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
        raise UserFunctionError(f"{node}: {_culprit(batch, error, what)}") from error


def _culprit(batch: Batch, error: Exception, what: str) -> str:
    """Say which value it is, by trying them one by one."""
    layout = batch.layout
    for key, value in zip(batch.keys, batch.values, strict=True):
        try:
            columns_of(layout, [key], [value])
        except (pl.exceptions.PolarsError, TypeError, ValueError, KeyError, OverflowError, AttributeError) as reason:
            if not layout.scalar and not isinstance(value, dict):
                return f"the function must give a dict of {', '.join(layout.value_columns)}, not {value!r}"
            if isinstance(reason, KeyError):
                return f"the function gave no column {reason.args[0]}; it gave {', '.join(map(str, value))}"
            wanted = layout.schema.field(layout.value).type if layout.value is not None else "the row's types"
            return f"{what} {value!r} under key {key!r} does not fit {wanted}: {reason}"
    return f"the function's results do not fit their columns: {error}"
