"""Output formats of single records in ``millrace consume``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import typer

from millrace.errors import UsageError

if TYPE_CHECKING:
    from millrace.clients import ConsumerRecord

Write = Callable[["ConsumerRecord"], None]
_HEX_LINE_BYTES: Final = 16


class OutputFormat(StrEnum):
    """Output formats of records."""

    JSON = "json"
    TABLE = "table"
    VALUE = "value"
    RAW = "raw"
    HEX = "hex"


class Shown(StrEnum):
    """Fields that ``millrace consume`` can print before a value.

    Their order is that of Kafka's console consumer.
    """

    TIMESTAMP = "timestamp"
    PARTITION = "partition"
    OFFSET = "offset"
    HEADERS = "headers"
    KEY = "key"


def parse_shown(text: str | None) -> list[Shown]:
    """Parse ``key,timestamp,...``; raises ``UsageError`` with the known names."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    try:
        wanted = {Shown(name) for name in names}
    except ValueError:
        raise UsageError(f"--show {text}: expected some of {', '.join(Shown)}") from None
    return [shown for shown in Shown if shown in wanted]


def writer(output_format: OutputFormat, columns: list[str] | None, shown: list[Shown]) -> Write:
    """Return the function that prints records in a format; raises ``UsageError`` if it does not support ``--show``."""
    if shown and output_format not in (OutputFormat.VALUE, OutputFormat.HEX):
        raise UsageError(f"--show needs --format value or hex: {output_format} has its own fields")
    match output_format:
        case OutputFormat.JSON:
            return _json_writer(columns)
        case OutputFormat.VALUE:
            return _value_writer(columns, shown)
        case OutputFormat.HEX:
            return _hex_writer(shown)
        case _:
            return _write_raw


def _only(value: Any, columns: list[str] | None) -> Any:
    if columns is None or not isinstance(value, dict):
        return value
    missing = [name for name in columns if name not in value]
    if missing:
        raise UsageError(f"--columns: the topic has no column {missing[0]}: its columns are {', '.join(value)}")
    return {name: value[name] for name in columns}


def _json_writer(columns: list[str] | None) -> Write:
    from millrace.cli.output import json_line
    from millrace.records import NO_TIMESTAMP

    def write(record: ConsumerRecord) -> None:
        fields = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": None if record.timestamp_ms == NO_TIMESTAMP else record.timestamp_ms,
            "key": _as_json(record.key),
            "value": _as_json(_only(record.value, columns)),
        }
        if record.headers:
            fields["headers"] = [[name, _as_json(value)] for name, value in record.headers]
        typer.echo(json_line(fields))

    return write


def _as_json(value: Any) -> Any:
    """Convert UTF-8 bytes to text, and others to marked base64, so that ``produce`` reads them back."""
    if not isinstance(value, bytes):
        return value
    from millrace.cli.output import json_value, printable

    text = printable(value)
    return {"base64": json_value(value)} if text is None else text


def _value_writer(columns: list[str] | None, shown: list[Shown]) -> Write:
    def write(record: ConsumerRecord) -> None:
        before = [_shown_bytes(record, each) for each in shown]
        sys.stdout.buffer.write(b"\t".join([*before, _line_of(_only(record.value, columns))]) + b"\n")

    return write


def _line_of(value: Any) -> bytes:
    """Return a value as the bytes of a line: bytes unchanged, typed values as JSON, nothing for null."""
    from millrace.cli.output import json_line

    if isinstance(value, bytes):
        return value
    return ("" if value is None else json_line(value)).encode()


def _shown_bytes(record: ConsumerRecord, shown: Shown) -> bytes:
    match shown:
        case Shown.TIMESTAMP:
            return f"Timestamp:{record.timestamp_ms}".encode()
        case Shown.PARTITION:
            return f"Partition:{record.partition}".encode()
        case Shown.OFFSET:
            return f"Offset:{record.offset}".encode()
        case Shown.HEADERS:
            named = (name.encode() + b":" + (b"null" if value is None else value) for name, value in record.headers)
            return b",".join(named) or b"NO_HEADERS"
        case Shown.KEY:
            return b"null" if record.key is None else _line_of(record.key)


def _hex_writer(shown: list[Shown]) -> Write:
    def write(record: ConsumerRecord) -> None:
        titles = [_shown_bytes(record, each).decode("utf-8", "replace") for each in shown if each is not Shown.KEY]
        where = f"{record.topic}-{record.partition} offset {record.offset}"
        typer.echo("  ".join([where, *titles]))
        if Shown.KEY in shown:
            _write_hex("key", record.key)
        _write_hex("value", record.value)

    return write


def _write_hex(name: str, value: Any) -> None:
    if value is None:
        typer.echo(f"  {name}: none")
        return
    data = value if isinstance(value, bytes) else _line_of(value)
    typer.echo(f"  {name}: {len(data)} bytes" + ("" if isinstance(value, bytes) else ", as JSON"))
    for line in hex_lines(data):
        typer.echo(f"    {line}")


def hex_lines(data: bytes) -> Iterable[str]:
    """Format sixteen bytes per line: position, hexadecimal bytes, and printable characters."""
    for start in range(0, len(data), _HEX_LINE_BYTES):
        part = data[start : start + _HEX_LINE_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{start:08x}  {part.hex(' '):<{3 * _HEX_LINE_BYTES - 1}}  |{text}|"


def _write_raw(record: ConsumerRecord) -> None:
    if isinstance(record.value, bytes):
        sys.stdout.buffer.write(record.value)
    elif record.value is not None:
        raise UsageError(f"topic {record.topic} is typed, and has no raw values: use --format value or json")
