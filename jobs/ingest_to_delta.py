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
import sys
import time
from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING

from pyspark_millrace.job import JobParser, Report, follow, pairs, run_job, say, trigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line and the configuration; exits with code 2 when something is wrong."""
    parser = JobParser(__file__, __doc__)
    add = parser.add_argument
    add("--topic", required=True, help="topic to read; several of one schema, separated by commas")
    add("--table", required=True, metavar="PATH", help="the Delta table's directory or URI; made if it does not exist")
    add("--checkpoint", metavar="PATH", help="where the progress is kept (default: PATH/_checkpoints/ingest)")
    parser.add_bootstrap_servers()
    add("--columns", metavar="A,B,...", help="ingest only these columns (__offset, __timestamp, ... among them)")
    add("--partition-by", metavar="A,B,...", help="columns by which a new table is partitioned")
    add("--merge-schema", action="store_true", help="add columns to the table that the topic has and it has not")
    add(
        "--compact-after", type=int, metavar="N", help="put small files together after so many batches (default: never)"
    )
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
    parser.add_pairs("--option", "further option of the source; repeatable")
    parser.add_stream_options()
    return parser.parse(arguments)


def source_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The options of the source."""
    options = {
        "kafka.bootstrap.servers": arguments.bootstrap_servers,
        "subscribe": arguments.topic,
        "startingOffsets": arguments.starting_offsets,
        "maxOffsetsPerTrigger": arguments.max_offsets_per_trigger,
        "columns": arguments.columns,
    }
    return {name: str(value) for name, value in options.items() if value is not None} | pairs(arguments.option)


def start_query(spark: SparkSession, arguments: argparse.Namespace, report: Report) -> StreamingQuery:
    """Start writing; the checkpoint makes a later run go on from here, by either writer."""
    from pyspark_millrace.delta import Compaction, append, ingest

    partition_by = arguments.partition_by.split(",") if arguments.partition_by else []
    compaction = None if arguments.compact_after is None else Compaction(after_batches=arguments.compact_after)
    if arguments.writer == "direct":
        return ingest(
            spark,
            source_options(arguments),
            arguments.table,
            checkpoint=checkpoint_of(arguments),
            partition_by=partition_by,
            merge_schema=arguments.merge_schema,
            trigger=trigger(arguments),
            query_name=f"ingest {arguments.topic}",
            on_batch=lambda batch: report.add(batch.batch_id, batch.rows, batch.seconds),
            compaction=compaction,
        )
    records = spark.readStream.format("millrace").options(**source_options(arguments)).load()
    into = append(
        arguments.table, partition_by=partition_by, merge_schema=arguments.merge_schema, compaction=compaction
    )
    writer = records.writeStream.foreachBatch(into).option("checkpointLocation", checkpoint_of(arguments))
    return writer.queryName(f"ingest {arguments.topic}").trigger(**trigger(arguments)).start()


def checkpoint_of(arguments: argparse.Namespace) -> str:
    """Inside the table by default, under a name that Delta passes over."""
    return str(arguments.checkpoint or f"{arguments.table.rstrip('/')}/_checkpoints/ingest")


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
    return run_job(lambda stopping: run(parsed, stopping))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
