"""``millrace consume``: the records of a topic, for people and for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import BootstrapServer, ClientConfigFile, ClientOptions, client_config
from millrace.errors import OffsetOutOfRangeError, UsageError

if TYPE_CHECKING:
    from millrace.clients import Consumer, ConsumerRecord, TopicPartition

_POLL_MS = 500
_TABLE_ROWS_DEFAULT = 100


class OutputFormat(StrEnum):
    """How records are printed."""

    JSON = "json"
    TABLE = "table"
    VALUE = "value"
    RAW = "raw"


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    output_format: Annotated[
        OutputFormat | None,
        typer.Option(
            "--format",
            "-f",
            help="json: a record a line; value: just values, a line each; raw: values' bytes and nothing else; "
            "table: by default at a terminal.",
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="beginning|end|OFFSET|TIME",
            help="Where to start; a time is ISO 8601, like 2024-05-01T12:00.",
        ),
    ] = "beginning",
    max_messages: Annotated[int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after so many.")] = None,
    partitions: Annotated[str | None, typer.Option("--partitions", "-p", metavar="0,2,5-7", help="Only these.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns of a typed topic.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more at the end; so does --from end.")] = False,
    option: ClientOptions = None,
    bootstrap_server: BootstrapServer = None,
    client_config_file: ClientConfigFile = None,
) -> None:
    """Print the records of a topic, those that it holds now or, with --follow, all that come.

    Examples:

      millrace consume orders -n 10

      millrace consume orders --from 2024-05-01T12:00Z --format json | jq .value

      millrace consume orders --partitions 0,1 --from 1500 --columns id,price

      millrace consume logs --format value --follow
    """
    from millrace.clients import Consumer
    from millrace.config.client import ConsumerConfig

    chosen = output_format or (OutputFormat.TABLE if sys.stdout.isatty() and not follow else OutputFormat.JSON)
    follow = follow or start == "end"
    if chosen is OutputFormat.TABLE and follow:
        raise UsageError("--follow and tables do not go together: use --format json, value or raw")
    config = client_config(ConsumerConfig, bootstrap_server, client_config_file, option)
    with Consumer(config) as consumer:
        assigned = _choose(consumer.partitions_for(topic), partitions)
        consumer.assign(assigned)
        _seek(consumer, start)
        names = [name.strip() for name in columns.split(",")] if columns else None
        job = _Job(consumer, assigned, follow=follow, max_messages=max_messages, columns=names)
        if chosen is OutputFormat.TABLE:
            _print_as_table(job)
        else:
            _print_lines(job, chosen)


def _choose(available: list[TopicPartition], wanted: str | None) -> list[TopicPartition]:
    if wanted is None:
        return available
    numbers: list[int] = []
    try:
        for part in wanted.split(","):
            first, dash, last = part.partition("-")
            numbers += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise UsageError(f"--partitions {wanted}: expected numbers and ranges like 0,2,5-7") from None
    topic = available[0]
    return [topic._replace(partition=number) for number in dict.fromkeys(numbers)]


def _seek(consumer: Consumer, start: str) -> None:
    if start == "beginning":
        consumer.seek_to_beginning()
    elif start == "end":
        consumer.seek_to_end()
        for partition in consumer.assignment():
            consumer.position(partition)
    elif start.isdigit():
        _seek_to_offset(consumer, int(start))
    else:
        try:
            when = datetime.fromisoformat(start)
        except ValueError:
            raise UsageError(f"--from {start}: it is beginning, end, an offset, or a time in ISO 8601") from None
        consumer.seek_to_time(when if when.tzinfo else when.replace(tzinfo=UTC))


def _seek_to_offset(consumer: Consumer, offset: int) -> None:
    """Start at ``offset`` in every partition. Raises ``OffsetOutOfRangeError`` naming a partition that has it not."""
    assigned = consumer.assignment()
    first, end = consumer.beginning_offsets(assigned), consumer.end_offsets(assigned)
    for partition in assigned:
        if not first[partition] <= offset <= end[partition]:
            raise OffsetOutOfRangeError(
                f"{partition.topic}-{partition.partition} has offsets {first[partition]} to {end[partition]} (the end),"
                f" not {offset}: start at another one, or choose partitions that have it with --partitions"
            )
        consumer.seek(partition, offset)


@dataclass(frozen=True, slots=True)
class _Job:
    """What is read, and until when."""

    consumer: Consumer
    assigned: list[TopicPartition]
    follow: bool
    max_messages: int | None
    columns: list[str] | None

    def ends(self) -> dict[TopicPartition, int] | None:
        """Offsets at which to stop, ``None`` when following."""
        return None if self.follow else self.consumer.end_offsets(self.assigned)

    def is_done(self, ends: dict[TopicPartition, int] | None, left: int | None) -> bool:
        """Whether everything asked for has been read."""
        if left is not None and left <= 0:
            return True
        return ends is not None and all(self.consumer.position(tp) >= end for tp, end in ends.items())


def _print_lines(job: _Job, output_format: OutputFormat) -> None:
    write = {
        OutputFormat.JSON: _json_writer(job.columns),
        OutputFormat.VALUE: _value_writer(job.columns),
        OutputFormat.RAW: _write_raw,
    }[output_format]
    from millrace.clients import TopicPartition

    ends, left = job.ends(), job.max_messages
    while not job.is_done(ends, left):
        records = job.consumer.poll(_POLL_MS, max_records=min(left or 5000, 5000))
        for record in records:
            if ends is None or record.offset < ends[TopicPartition(record.topic, record.partition)]:
                write(record)
        left = None if left is None else left - len(records)
        sys.stdout.flush()


_Write = Callable[["ConsumerRecord"], None]


def _only(value: Any, columns: list[str] | None) -> Any:
    if columns is None or not isinstance(value, dict):
        return value
    missing = [name for name in columns if name not in value]
    if missing:
        raise UsageError(f"--columns: the topic has no column {missing[0]}, it has {', '.join(value)}")
    return {name: value[name] for name in columns}


def _json_writer(columns: list[str] | None) -> _Write:
    from millrace.cli.output import json_line

    def write(record: ConsumerRecord) -> None:
        fields = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": _shown(record.key),
            "value": _shown(_only(record.value, columns)),
        }
        if record.headers:
            fields["headers"] = [[name, _shown(value)] for name, value in record.headers]
        typer.echo(json_line(fields))

    return write


def _shown(value: Any) -> Any:
    """Bytes as text where they are, otherwise marked as base64, so that ``produce`` reads them back."""
    if not isinstance(value, bytes):
        return value
    from millrace.cli.output import json_value, printable

    text = printable(value)
    return {"base64": json_value(value)} if text is None else text


def _value_writer(columns: list[str] | None) -> _Write:
    from millrace.cli.output import json_line

    def write(record: ConsumerRecord) -> None:
        value = _only(record.value, columns)
        if isinstance(value, bytes):
            sys.stdout.buffer.write(value + b"\n")
        else:
            sys.stdout.buffer.write(("" if value is None else json_line(value)).encode() + b"\n")

    return write


def _write_raw(record: ConsumerRecord) -> None:
    if isinstance(record.value, bytes):
        sys.stdout.buffer.write(record.value)
    elif record.value is not None:
        raise UsageError(f"topic {record.topic} is typed, and has no raw values: use --format value or json")


def _print_as_table(job: _Job) -> None:
    from millrace.cli.output import print_table

    ends, left = job.ends(), job.max_messages or _TABLE_ROWS_DEFAULT
    rows: list[list[Any]] = []
    names: list[str] = []
    deadline = time.monotonic() + 60
    while not job.is_done(ends, left) and time.monotonic() < deadline:
        table = job.consumer.poll_table(
            _POLL_MS, max_records=left, columns=job.columns, metadata=["__partition", "__offset", "__timestamp"]
        )
        names = table.column_names
        rows += [list(row.values()) for row in table.to_pylist()]
        left -= table.num_rows
    print_table([name.removeprefix("__").upper() if name.startswith("__") else name for name in names], rows)
    if ends is not None and not job.is_done(ends, None):
        typer.echo(f"... and more: this shows {len(rows)} records, -n shows more", err=True)
