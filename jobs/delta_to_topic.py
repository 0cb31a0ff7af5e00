#!/usr/bin/env python3
r"""Exactly-once copy of a Delta table's changes to a topic.

The job reads the table's Change Data Feed. Inserted and updated rows become records, and deleted rows become
tombstones. Each key's records are in the order of the table's commits. The first run writes the existing rows. With
--starting-version the job begins with the changes of a commit instead. A job that is killed at any moment resumes when
it is run again. Readers with isolation.level=read_committed miss no change and see none twice. By default the job
writes the table's current changes and ends. With --continuous it runs until it is stopped (SIGTERM or Ctrl-C stop it
cleanly).

A typed topic gets the table's columns; an opaque topic gets JSON. The table needs delta.enableChangeDataFeed=true. With
--appended-only the job reads a table without that property, if rows are only added to the table. The option --where
selects changes, not rows. An excluded change leaves the key's record unchanged.

  python jobs/delta_to_topic.py --table /data/customers --topic customers --key id --checkpoint /data/checkpoints/c
  spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 \
      jobs/delta_to_topic.py --table /data/orders --topic large_orders --key id --checkpoint /data/checkpoints/large \
      --where 'price > 1000' --starting-version latest --continuous

Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong arguments.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Annotated

from typer import Option

from pyspark_millrace.job import (
    QueryJob,
    StreamArguments,
    names,
    pair_option,
    pairs,
    run_job,
    run_query,
    sql_option,
    trigger,
)
from pyspark_millrace.job import parse_arguments as parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


@dataclass(frozen=True, kw_only=True)
class Arguments(StreamArguments):
    """Options of this job."""

    table: Annotated[str, Option(metavar="PATH", help="the Delta table's directory or URI")]
    topic: Annotated[str, Option(help="topic to write to")]
    key: Annotated[str, Option(metavar="A,B,...", help="columns that identify a row of the table")]
    checkpoint: Annotated[
        str, Option(metavar="PATH", help="checkpoint of the query; a separate one for each table and topic")
    ]
    select: Annotated[list[str], sql_option("expression to write, with AS name; repeatable")] = field(
        default_factory=list
    )
    where: Annotated[str | None, sql_option("write only changes for which this is true")] = None
    starting_version: Annotated[
        str | None, Option(metavar="N", help="first commit whose changes are written: a version, or latest")
    ] = None
    appended_only: Annotated[
        bool, Option("--appended-only", help="read the added rows of a table without a change data feed")
    ] = False
    max_files_per_trigger: Annotated[
        int | None, Option(metavar="N", help="largest number of files of the table in a micro-batch (default: 1000)")
    ] = None
    source_option: Annotated[list[str], pair_option("further option of Delta's source")] = field(default_factory=list)
    sink_option: Annotated[list[str], pair_option("further option of the sink")] = field(default_factory=list)


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Read the command line and the configuration. Exits with code 2 if they are invalid."""
    return parse(Arguments, arguments, script=__file__, description=__doc__)


def select(frame: "DataFrame", arguments: Arguments) -> "DataFrame":
    """Return the changes that the options select."""
    if arguments.where is not None:
        frame = frame.where(arguments.where)
    if not arguments.select:
        return frame
    return frame.selectExpr(*arguments.select, *(name for name in CHANGE_COLUMNS if name in frame.columns))


def start_query(spark: "SparkSession", arguments: Arguments) -> "StreamingQuery":
    """Start writing. A later run resumes from the checkpoint."""
    from pyspark_millrace.delta import changes_to_topic

    limit = arguments.max_files_per_trigger
    sink = arguments.spark_options | {"topic": arguments.topic}
    return changes_to_topic(
        spark,
        arguments.table,
        sink | pairs(arguments.sink_option),
        checkpoint=arguments.checkpoint,
        key=names(arguments.key),
        starting_version=arguments.starting_version,
        appended_only=arguments.appended_only,
        select=lambda frame: select(frame, arguments),
        table_options=({} if limit is None else {"maxFilesPerTrigger": str(limit)}) | pairs(arguments.source_option),
        trigger=trigger(arguments),
        query_name=f"{arguments.table} to {arguments.topic}",
    )


def run(arguments: Arguments, stopping: Event) -> None:
    """Start Spark and write."""
    job = QueryJob(
        f"{arguments.table} to {arguments.topic}",
        source=arguments.table,
        target=arguments.topic,
        checkpoint=arguments.checkpoint,
        counted="changes read",
    )
    run_query(job, arguments, stopping, lambda spark, report: start_query(spark, arguments))


if __name__ == "__main__":
    sys.exit(run_job(run, parse_arguments(sys.argv[1:])))
