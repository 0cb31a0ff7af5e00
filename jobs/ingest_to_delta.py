#!/usr/bin/env python3
r"""Ingest a topic into a Delta table, exactly once.

Spark's checkpoint says which offsets each micro-batch holds, and Delta remembers the last batch it took: killed at any
moment and run again, the job goes on where the table is, with nothing lost and nothing twice. By default it takes
what the topic holds and ends; with --continuous it goes on until it is stopped (SIGTERM or Ctrl-C end it cleanly).

The tasks write the table's files straight from Arrow (--writer direct). Let Spark write them (--writer spark) when the
table is on an object store or has what only Spark keeps: constraints, generated columns, column mapping.

  python jobs/ingest_to_delta.py --topic flights --table /data/flights
  spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 \
      jobs/ingest_to_delta.py --topic flights --table /data/flights

Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any

from millrace.errors import MillraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

POLL_S = 0.2


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; exits with code 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="ingest_to_delta.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--topic", required=True, help="topic to read; several of one schema, separated by commas")
    add("--table", required=True, metavar="PATH", help="the Delta table's directory or URI; made if it does not exist")
    add("--checkpoint", metavar="PATH", help="where the progress is kept (default: PATH/_checkpoints/ingest)")
    add(
        "--bootstrap-servers",
        default=os.environ.get("MILLRACE_BOOTSTRAP_SERVERS", "localhost:9092"),
        metavar="HOST:PORT,...",
        help="brokers (default: MILLRACE_BOOTSTRAP_SERVERS, else localhost:9092)",
    )
    add("--columns", metavar="A,B,...", help="ingest only these columns (__offset, __timestamp, ... among them)")
    add("--partition-by", metavar="A,B,...", help="columns by which a new table is partitioned")
    add("--merge-schema", action="store_true", help="add columns to the table that the topic has and it has not")
    add(
        "--writer",
        default="direct",
        choices=["direct", "spark"],
        help="who writes the table's files: the tasks from Arrow, or Spark row by row (default: direct)",
    )
    add(
        "--starting-offsets",
        default="earliest",
        metavar="WHERE",
        help="where the first run starts: earliest, latest or JSON per partition (default: earliest)",
    )
    add("--max-offsets-per-trigger", type=int, metavar="N", help="most records in a micro-batch (default: no limit)")
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="further option of the source; repeatable")
    add("--continuous", action="store_true", help="go on until stopped, instead of ending with what is there")
    add(
        "--trigger-interval",
        default="1 second",
        help="time between micro-batches with --continuous (default: 1 second)",
    )
    add("--profile", default="default", choices=["default", "low-latency"], help="session profile (default: default)")
    parsed = parser.parse_args(arguments)
    for option in parsed.option:
        if "=" not in option:
            parser.error(f"--option {option}: expected NAME=VALUE")
    return parsed


def source_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The options of the source."""
    options = {
        "kafka.bootstrap.servers": arguments.bootstrap_servers,
        "subscribe": arguments.topic,
        "startingOffsets": arguments.starting_offsets,
        "maxOffsetsPerTrigger": arguments.max_offsets_per_trigger,
        "columns": arguments.columns,
    }
    options |= dict(option.split("=", 1) for option in arguments.option)
    return {name: str(value) for name, value in options.items() if value is not None}


def start_query(spark: SparkSession, arguments: argparse.Namespace, report: Report) -> StreamingQuery:
    """Start writing; the checkpoint makes a later run go on from here, by either writer."""
    trigger: dict[str, Any] = {"availableNow": True}
    if arguments.continuous:
        trigger = {"processingTime": arguments.trigger_interval}
    partition_by = arguments.partition_by.split(",") if arguments.partition_by else []
    if arguments.writer == "direct":
        from pyspark_millrace.delta import ingest

        return ingest(
            spark,
            source_options(arguments),
            arguments.table,
            checkpoint=checkpoint_of(arguments),
            partition_by=partition_by,
            merge_schema=arguments.merge_schema,
            trigger=trigger,
            query_name=f"ingest {arguments.topic}",
            on_batch=lambda batch: report.add(batch.batch_id, batch.rows, batch.seconds),
        )
    records = spark.readStream.format("millrace").options(**source_options(arguments)).load()
    writer = records.writeStream.format("delta").option("checkpointLocation", checkpoint_of(arguments))
    writer = writer.option("mergeSchema", str(arguments.merge_schema)).partitionBy(*partition_by)
    writer = writer.outputMode("append").queryName(f"ingest {arguments.topic}").trigger(**trigger)
    return writer.start(arguments.table)


def checkpoint_of(arguments: argparse.Namespace) -> str:
    """Inside the table by default, under a name that Delta passes over."""
    return str(arguments.checkpoint or f"{arguments.table.rstrip('/')}/_checkpoints/ingest")


class Report:
    """Prints a line for each micro-batch that is in the table; ``rows`` is their sum."""

    def __init__(self) -> None:
        self.rows = 0
        self._last = -1

    def add(self, batch_id: int, rows: int, seconds: float) -> None:
        """A batch is done; told again, or without rows, it is passed over."""
        if batch_id <= self._last or not rows:
            return
        self._last = batch_id
        self.rows += rows
        say(f"batch {batch_id}: {rows:,} rows in {seconds:.1f} s ({rows / max(seconds, 0.001):,.0f} rows/s)")

    def add_progress(self, query: StreamingQuery) -> None:
        """What Spark has written since the last time."""
        for progress in query.recentProgress:
            milliseconds = progress["durationMs"].get("triggerExecution", 0)
            self.add(progress["batchId"], progress["numInputRows"], milliseconds / 1000)


def follow(query: StreamingQuery, stopping: Event, each_time: Callable[[StreamingQuery], None]) -> None:
    """Wait until the query ends or is to stop. Raises what it failed with."""
    while query.isActive and not stopping.is_set():
        stopping.wait(POLL_S)
        each_time(query)
    if stopping.is_set() and query.isActive:
        say("stopping: what is not committed yet is read again by the next run")
        query.stop()
    else:
        query.awaitTermination()
    each_time(query)


def say(text: str) -> None:
    """Print a line at once, so that it shows in a pipe as well."""
    print(text, flush=True)


def run(arguments: argparse.Namespace, stopping: Event) -> None:
    """Start Spark and ingest."""
    from pyspark_millrace import session

    spark = session(
        f"ingest {arguments.topic}",
        profile=arguments.profile,
        checkpoint_root=os.path.dirname(checkpoint_of(arguments)),
    )
    spark.sparkContext.setLogLevel("ERROR")
    say(
        f"{arguments.topic} at {arguments.bootstrap_servers} -> {arguments.table} "
        f"(checkpoint {checkpoint_of(arguments)})"
    )
    started, report = time.monotonic(), Report()
    query = start_query(spark, arguments, report)
    # Direct ingest reports its batches itself: Spark's progress counts its files.
    follow(query, stopping, report.add_progress if arguments.writer == "spark" else lambda query: None)
    seconds = time.monotonic() - started
    say(f"{report.rows:,} rows in {seconds:.1f} s ({report.rows / seconds:,.0f} rows/s) -> {arguments.table}")
    spark.stop()


def main(arguments: Sequence[str]) -> int:
    """Run the job and return its exit code."""
    parsed = parse_arguments(arguments)
    stopping = Event()

    def stop(number: int, frame: Any) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        run(parsed, stopping)
    except MillraceError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001  whatever Spark raises is told in a sentence, and the exit code says it
        if stopping.is_set():
            # The signal stopped Spark as well, in the middle of a call. What is committed is committed.
            return 0
        from pyspark_millrace.spark_errors import explain

        print(f"error: {explain(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
