"""Output of commands: tables, JSON, and progress on standard error."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

_PIPED_WIDTH: Final = 240
"""Width of a table without a terminal."""


def console() -> Console:
    """Return the console of standard output, as wide as the terminal, or with a fixed width without one."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows as a table; numbers are aligned at the right."""
    from rich.markup import escape

    body = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        is_number = bool(body) and all(isinstance(row[position], (int, float, type(None))) for row in body)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in body:
        table.add_row(
            *("" if cell is None else escape(cell if isinstance(cell, str) else text_of(cell)) for cell in row)
        )
    console().print(table)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(value, indent=2, default=json_value, ensure_ascii=False))


def json_line(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, default=json_value, ensure_ascii=False)


def json_value(value: Any) -> Any:
    """Convert types without a JSON form: times to ISO 8601, decimals to text, durations to seconds, bytes to base64."""
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def cells(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column. Times that Python does not have (after the year 9999) are shown as numbers."""
    import pyarrow as pa

    values: list[Any]
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError):
        if not pa.types.is_temporal(column.type):
            raise
        number = pa.int32() if column.type.bit_width == 32 else pa.int64()
        values = pa.chunked_array([chunk.view(number) for chunk in column.chunks], number).to_pylist()
    return values


def text_of(value: Any) -> str:
    """Return the text of a table's cell."""
    if isinstance(value, bytes):
        text = printable(value)
        return text if text is not None else "0x" + value.hex()
    return str(value) if not isinstance(value, (dict, list)) else json_line(value)


def printable(value: bytes) -> str | None:
    """Return bytes as text, ``None`` if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def progress() -> AbstractContextManager[Progress]:
    """Return a progress bar on standard error, shown only at a terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
