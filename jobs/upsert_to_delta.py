#!/usr/bin/env python3
r"""Keep a Delta table up to date with a topic of changes by key: insert, update, delete, exactly once.

Of each key the latest change of a micro-batch counts, by its offset, and is applied by MERGE under the batch's
transaction: killed at any moment and run again, the job goes on where the table is. By default it takes what the topic
holds and ends; with --continuous it goes on until it is stopped (SIGTERM or Ctrl-C end it cleanly).

A tombstone deletes its key (typed topics), and so does a change for which --delete-when is true. Records of opaque
topics become columns by --select, as Spark SQL: key, value and what else a record has are there to be used.

  python jobs/upsert_to_delta.py --topic customers --table /data/customers --key id
  spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 \
      jobs/upsert_to_delta.py --topic orders_cdc --table /data/orders --key id \
      --select 'CAST(key AS STRING) AS id' --select "from_json(CAST(value AS STRING), 'op STRING, price INT').*" \
      --delete-when "op = 'd'" --drop op --continuous

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
    from pyspark.sql import DataFrame, SparkSession


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line and the configuration; exits with code 2 when something is wrong."""
    parser = JobParser(__file__, __doc__)
    add = parser.add_argument
    add("--topic", required=True, help="topic to read; several of one schema, separated by commas")
    add("--table", required=True, metavar="PATH", help="the Delta table's directory or URI; made if it does not exist")
    add("--key", required=True, metavar="A,B,...", help="columns by which rows of the table are known")
    add("--checkpoint", metavar="PATH", help="where the progress is kept (default: PATH/_checkpoints/upsert)")
    parser.add_bootstrap_servers()
    add("--columns", metavar="A,B,...", help="columns to read (default: all)")
    add("--select", action="append", default=[], metavar="SQL", help="expression to write, with AS name; repeatable")
    add("--delete-when", metavar="SQL", help="a change for which this is true deletes (default: tombstones do)")
    add("--order-by", metavar="A,B,...", help="columns of which the largest is the latest change (default: the offset)")
    add("--guard", metavar="COLUMN", help="pass over changes of which this column is not larger than the table's")
    add("--drop", metavar="A,B,...", help="columns that are used and not written")
    add("--partition-by", metavar="A,B,...", help="columns by which a new table is partitioned")
    add("--merge-schema", action="store_true", help="add columns to the table that the changes have and it has not")
    add("--compact-after", type=int, metavar="N", help="put small files together after so many batches")
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


def names(text: str | None) -> tuple[str, ...]:
    """Column names separated by commas."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


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


PLACE = ("__topic", "__partition", "__offset", "__tombstone")
"""What says which change is the latest, and whether it deletes: read with the columns, and not written."""


def changes(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    """The stream of changes, with what orders them."""
    options = source_options(arguments)
    reader = spark.readStream.format("millrace")
    given = names(options.get("columns")) or tuple(reader.options(**options).load().columns)
    is_opaque = "timestampType" in given
    added = [name for name in PLACE if name not in given and not (is_opaque and name == "__tombstone")]
    frame = reader.options(**options | {"columns": ",".join([*given, *added])}).load()
    return frame.selectExpr(*arguments.select, *added) if arguments.select else frame


def checkpoint_of(arguments: argparse.Namespace) -> str:
    """Inside the table by default, under a name that Delta passes over."""
    return str(arguments.checkpoint or f"{arguments.table.rstrip('/')}/_checkpoints/upsert")


def run(arguments: argparse.Namespace, stopping: Event) -> None:
    """Start Spark and apply the changes."""
    from pyspark_millrace import session
    from pyspark_millrace.delta import Compaction, upsert

    name, checkpoint = f"upsert {arguments.topic}", checkpoint_of(arguments)
    spark = session(name, profile=arguments.profile, checkpoint_root=os.path.dirname(checkpoint) or ".")
    spark.sparkContext.setLogLevel("ERROR")
    say(f"{arguments.topic} at {arguments.bootstrap_servers} -> {arguments.table} (checkpoint {checkpoint})")
    started, report = time.monotonic(), Report()
    into = upsert(
        arguments.table,
        key=names(arguments.key),
        delete_when=arguments.delete_when,
        order_by=names(arguments.order_by),
        guard=arguments.guard,
        drop=names(arguments.drop),
        partition_by=names(arguments.partition_by),
        merge_schema=arguments.merge_schema,
        compaction=Compaction(after_batches=arguments.compact_after) if arguments.compact_after is not None else None,
    )
    writer = changes(spark, arguments).writeStream.foreachBatch(into).option("checkpointLocation", checkpoint)
    query = writer.queryName(name).trigger(**trigger(arguments)).start()
    follow(query, stopping, report.add_progress)
    seconds = time.monotonic() - started
    say(f"{report.rows:,} changes in {seconds:.1f} s ({report.rows / seconds:,.0f} changes/s) -> {arguments.table}")
    spark.stop()


def main(arguments: Sequence[str]) -> int:
    """Run the job and return its exit code."""
    parsed = parse_arguments(arguments)
    return run_job(lambda stopping: run(parsed, stopping))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
