#!/usr/bin/env python3
r"""Exactly-once ingest of a topic into a Delta table.

Spark's checkpoint records the offsets of each micro-batch, and Delta records the last batch it committed. A job that is
killed at any moment resumes from the table's state when it is run again. No record is lost or duplicated. By default
the job reads the records that the topic holds and ends. With --continuous it runs until it is stopped (SIGTERM or
Ctrl-C stop it cleanly).

The tasks write the table's files directly from Arrow (--writer direct). Use --writer spark for a table on an object
store, or with features that only Spark maintains: constraints, generated columns, column mapping.

  python jobs/ingest_to_delta.py --topic flights --table /data/flights
  spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 \
      jobs/ingest_to_delta.py --topic flights --table /data/flights

Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong arguments.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from pyspark_millrace.job import (
    CompactionArguments,
    QueryJob,
    Report,
    SourceArguments,
    StreamArguments,
    compaction,
    names,
    pair_option,
    run_job,
    run_query,
    source_options,
    trigger,
)
from pyspark_millrace.job import parse_arguments as parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class Arguments(CompactionArguments, SourceArguments, StreamArguments):
    """Options of this job."""

    topic: Annotated[str, Option(help="topic to read, or several topics of one schema, separated by commas")]
    table: Annotated[
        str, Option(metavar="PATH", help="directory or URI of the Delta table, which is created if it does not exist")
    ]
    checkpoint: Annotated[
        str | None, Option(metavar="PATH", help="checkpoint of the query (default: PATH/_checkpoints/ingest)")
    ] = None
    partition_by: Annotated[str | None, Option(metavar="A,B,...", help="partition columns of a new table")] = None
    merge_schema: Annotated[
        bool, Option("--merge-schema", help="add the columns to the table that only the topic has")
    ] = False
    writer: Annotated[
        Literal["direct", "spark"],
        Option(help="writer of the table's files: the tasks, from Arrow, or Spark, row by row"),
    ] = "direct"
    option: Annotated[list[str], pair_option("further option of the source")] = field(default_factory=list)


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Read the command line and the configuration. Exits with code 2 if they are invalid."""
    return parse(Arguments, arguments, script=__file__, description=__doc__)


def start_query(spark: "SparkSession", arguments: Arguments, report: Report) -> "StreamingQuery":
    """Start writing. A later run, with either writer, resumes from the checkpoint."""
    from pyspark_millrace.delta import append, ingest

    options, partition_by = source_options(arguments, arguments.topic, arguments.option), names(arguments.partition_by)
    if arguments.writer == "direct":
        return ingest(
            spark,
            options,
            arguments.table,
            checkpoint=checkpoint_of(arguments),
            partition_by=partition_by,
            merge_schema=arguments.merge_schema,
            trigger=trigger(arguments),
            query_name=f"ingest {arguments.topic}",
            on_batch=lambda batch: report.add(batch.batch_id, batch.rows, batch.seconds),
            compaction=compaction(arguments),
        )
    records = spark.readStream.format("millrace").options(**options).load()
    into = append(
        arguments.table,
        partition_by=partition_by,
        merge_schema=arguments.merge_schema,
        compaction=compaction(arguments),
    )
    writer = records.writeStream.foreachBatch(into).option("checkpointLocation", checkpoint_of(arguments))
    return writer.queryName(f"ingest {arguments.topic}").trigger(**trigger(arguments)).start()


def checkpoint_of(arguments: Arguments) -> str:
    """Return the checkpoint, by default inside the table under a name that Delta ignores."""
    return str(arguments.checkpoint or f"{arguments.table.rstrip('/')}/_checkpoints/ingest")


def run(arguments: Arguments, stopping: Event) -> None:
    """Start Spark and ingest."""
    job = QueryJob(
        f"ingest {arguments.topic}",
        source=arguments.topic,
        target=arguments.table,
        checkpoint=checkpoint_of(arguments),
        # Direct ingest reports its batches itself, because Spark's progress counts its files.
        spark_counts=arguments.writer == "spark",
    )
    run_query(job, arguments, stopping, lambda spark, report: start_query(spark, arguments, report))


if __name__ == "__main__":
    sys.exit(run_job(run, parse_arguments(sys.argv[1:])))
