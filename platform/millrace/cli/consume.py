"""The command ``millrace consume``, which prints the records of a topic."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.cli.options import BootstrapServer, ClientConfigFile, ClientOptions, client_config
from millrace.cli.record_formats import OutputFormat
from millrace.errors import UsageError

if TYPE_CHECKING:
    from millrace.cli.consume_range import Reading
    from millrace.cli.record_formats import Shown
    from millrace.clients import Consumer, TopicPartition

_POLL_MS: Final = 500
_POLL_RECORDS: Final = 5000
_TABLE_ROWS_DEFAULT: Final = 100
_TABLE_SECONDS_MAX: Final = 60

Format = Annotated[
    OutputFormat | None,
    typer.Option(
        "--format",
        "-f",
        help="json: one record in each line; value: one value in each line; raw: only the bytes of values; hex: "
        "bytes in readable form; table: the default on a terminal.",
    ),
]
Start = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="beginning|end|OFFSET|TIME",
        help="Start of the output: beginning, end, an offset, or a time in ISO 8601 such as 2024-05-01T12:00.",
    ),
]
End = Annotated[
    str, typer.Option("--to", metavar="end|OFFSET|TIME", help="End of the output: before this offset or time.")
]
Show = Annotated[
    str | None,
    typer.Option(
        metavar="key,timestamp,...",
        help="Fields to print before a value with --format value or hex: key, headers, timestamp, partition, "
        "offset. The formats json and table have all of them.",
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(help="Read as a member of this group from its committed offsets, and commit the printed records."),
]
IsolationLevel = Annotated[
    str | None, typer.Option(metavar="read_committed", help="Leave out records of aborted and open transactions.")
]
Partitions = Annotated[str | None, typer.Option("--partitions", "-p", metavar="0,2,5-7", help="Only these partitions.")]


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    output_format: Format = None,
    start: Start = "beginning",
    end: End = "end",
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after this many records.")
    ] = None,
    partitions: Partitions = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns of a typed topic.")] = None,
    show: Show = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for more records at the end. --from end does so too.")
    ] = False,
    group: GroupOption = None,
    isolation_level: IsolationLevel = None,
    option: ClientOptions = None,
    bootstrap_server: BootstrapServer = None,
    client_config_file: ClientConfigFile = None,
) -> None:
    """Print the records that a topic has now. With --follow, print all later ones too.

    Examples:

      millrace consume orders -n 10

      millrace consume orders --from 2024-05-01T12:00Z --to 2024-05-02T12:00Z --format json | jq .value

      millrace consume orders --partitions 0,1 --from 1500 --columns id,price

      millrace consume logs --format value --show timestamp,key --follow

      millrace consume orders --group billing --isolation-level read_committed
    """
    from millrace.cli.consume_range import Reading
    from millrace.cli.record_formats import parse_shown
    from millrace.clients import Consumer
    from millrace.config.client import ConsumerConfig

    chosen = output_format or (OutputFormat.TABLE if sys.stdout.isatty() and not follow else OutputFormat.JSON)
    follow = follow or (start == "end" and group is None)
    if chosen is OutputFormat.TABLE and follow:
        raise UsageError("--follow does not support tables: use --format json, value, hex or raw")
    if follow and end != "end":
        raise UsageError("--follow has no end: leave out --to")
    config = client_config(ConsumerConfig, bootstrap_server, client_config_file, option, **_group_options(group, start))
    if isolation_level is not None:
        config["isolation.level"] = isolation_level
    names = [name.strip() for name in columns.split(",")] if columns else None
    with Consumer(config) as consumer:
        ends = _begin(consumer, topic, partitions, start, None if follow else end, in_group=group is not None)
        reading = Reading(consumer, ends, max_messages, names, in_group=group is not None)
        if chosen is OutputFormat.TABLE:
            _print_as_table(reading, topic)
        else:
            _print_lines(reading, chosen, parse_shown(show))


def _group_options(group: str | None, start: str) -> dict[str, Any]:
    if group is None:
        return {}
    if start not in ("beginning", "end"):
        raise UsageError(
            "--group starts at committed offsets: use --from beginning or --from end for partitions without a "
            "committed offset"
        )
    reset = "earliest" if start == "beginning" else "latest"
    return {"group_id": group, "enable_auto_commit": False, "auto_offset_reset": reset}


def _begin(
    consumer: Consumer, topic: str, partitions: str | None, start: str, end: str | None, *, in_group: bool
) -> dict[TopicPartition, int] | None:
    """Seek to the start; returns the end offsets, ``None`` without an end."""
    from millrace.cli.consume_range import choose_partitions, find_ends, seek

    chosen = choose_partitions(consumer.partitions_for(topic), partitions)
    if not in_group:
        consumer.assign(chosen)
        seek(consumer, start)
    elif partitions is not None:
        raise UsageError("--group excludes --partitions: the group assigns partitions to its members")
    ends = None if end is None else find_ends(consumer, chosen, end)
    if in_group:
        consumer.subscribe(topic)
    return ends


def _print_lines(reading: Reading, output_format: OutputFormat, shown: list[Shown]) -> None:
    from millrace.cli.record_formats import writer

    write = writer(output_format, reading.columns, shown)
    for records in reading.polls(_POLL_MS, _POLL_RECORDS):
        for record in records:
            write(record)
        sys.stdout.flush()


def _print_as_table(reading: Reading, topic: str) -> None:
    """Print the records as a table. A group member commits these records, and no others, afterwards."""
    from millrace.cli.output import cells, print_table
    from millrace.clients import TopicPartition

    left = reading.max_messages or _TABLE_ROWS_DEFAULT
    rows: list[list[Any]] = []
    names: list[str] = []
    printed: dict[TopicPartition, int] = {}
    deadline = time.monotonic() + _TABLE_SECONDS_MAX
    while not reading.is_done(left) and time.monotonic() < deadline:
        table = reading.consumer.poll_table(
            _POLL_MS, max_records=left, columns=reading.columns, metadata=["__partition", "__offset", "__timestamp"]
        )
        if not table.num_rows:
            continue
        names = table.column_names
        values = [cells(column) for column in table.columns]
        found = [
            row
            for row in (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))
            if _is_before_end(reading, row)
        ]
        rows += [list(row.values()) for row in found]
        left -= len(found)
        printed.update((TopicPartition(topic, row["__partition"]), row["__offset"] + 1) for row in found)
    print_table([name.removeprefix("__").upper() if name.startswith("__") else name for name in names], rows)
    if reading.in_group and printed:
        reading.consumer.commit(printed)
    if reading.ends is not None and not reading.is_done(None):
        typer.echo(f"... and more: this shows {len(rows)} records, -n shows more", err=True)


def _is_before_end(reading: Reading, row: dict[str, Any]) -> bool:
    if reading.ends is None:
        return True
    return any(
        partition.partition == row["__partition"] and row["__offset"] < end for partition, end in reading.ends.items()
    )
