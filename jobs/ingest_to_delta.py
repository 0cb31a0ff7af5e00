#!/usr/bin/env python3
r"""Ingest a topic into a Delta table, exactly once.

Spark's checkpoint says which offsets each micro-batch holds, and Delta remembers the last batch it took: killed at any
moment and run again, the job goes on where the table is, with nothing lost and nothing twice. By default it takes
what the topic holds and ends; with --continuous it goes on until it is stopped (SIGTERM or Ctrl-C end it cleanly).

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
from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING, Any

from millrace.errors import MillraceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
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


def read_topic(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    """The topic as a streaming DataFrame."""
    options = {
        "kafka.bootstrap.servers": arguments.bootstrap_servers,
        "subscribe": arguments.topic,
        "startingOffsets": arguments.starting_offsets,
        "maxOffsetsPerTrigger": arguments.max_offsets_per_trigger,
        "columns": arguments.columns,
    }
    options |= dict(option.split("=", 1) for option in arguments.option)
    given = {name: str(value) for name, value in options.items() if value is not None}
    return spark.readStream.format("millrace").options(**given).load()


def start_query(records: DataFrame, arguments: argparse.Namespace) -> StreamingQuery:
    """Start writing; the checkpoint makes a later run go on from here."""
    writer = records.writeStream.format("delta").option("checkpointLocation", checkpoint_of(arguments))
    writer = writer.outputMode("append").queryName(f"ingest {arguments.topic}")
    if arguments.partition_by:
        writer = writer.partitionBy(*arguments.partition_by.split(","))
    if arguments.continuous:
        writer = writer.trigger(processingTime=arguments.trigger_interval)
    else:
        writer = writer.trigger(availableNow=True)
    return writer.start(arguments.table)


def checkpoint_of(arguments: argparse.Namespace) -> str:
    """Inside the table by default, under a name that Delta passes over."""
    return str(arguments.checkpoint or f"{arguments.table.rstrip('/')}/_checkpoints/ingest")


def follow(query: StreamingQuery, stopping: Event) -> int:
    """Report each micro-batch until the query ends or is to stop; returns how many rows went through."""
    rows, reported = 0, -1
    while query.isActive and not stopping.is_set():
        stopping.wait(POLL_S)
        rows, reported = report_batches(query, rows, reported)
    if stopping.is_set() and query.isActive:
        say("stopping: what is not committed yet is read again by the next run")
        query.stop()
    else:
        # Raises what the query failed with.
        query.awaitTermination()
    return report_batches(query, rows, reported)[0]


def report_batches(query: StreamingQuery, rows: int, reported: int) -> tuple[int, int]:
    """Print a line for each micro-batch since ``reported``."""
    for progress in query.recentProgress:
        if progress["batchId"] <= reported or not progress["numInputRows"]:
            continue
        reported = progress["batchId"]
        rows += progress["numInputRows"]
        milliseconds = progress["durationMs"].get("triggerExecution", 0)
        rate = progress["numInputRows"] / max(milliseconds, 1) * 1000
        say(f"batch {reported}: {progress['numInputRows']:,} rows in {milliseconds / 1000:.1f} s ({rate:,.0f} rows/s)")
    return rows, reported


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
    started = time.monotonic()
    rows = follow(start_query(read_topic(spark, arguments), arguments), stopping)
    seconds = time.monotonic() - started
    say(f"{rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f} rows/s) -> {arguments.table}")
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
