#!/usr/bin/env python3
r"""Exactly-once upsert of a topic's changes by key into a Delta table.

The job keeps the table up to date: changes insert, update and delete rows. For each key, the latest change of a
micro-batch (by offset) is applied by MERGE, in the batch's transaction. A job that is killed at any moment resumes from
the table's state when it is run again. By default the job reads the records that the topic holds and ends. With
--continuous it runs until it is stopped (SIGTERM or Ctrl-C stop it cleanly).

A tombstone deletes its key (typed topics), and so does a change for which --delete-when is true. The option --select
converts records of opaque topics to columns, with Spark SQL over key, value and the other fields of a record.

  python jobs/upsert_to_delta.py --topic customers --table /data/customers --key id
  spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 \
      jobs/upsert_to_delta.py --topic orders_cdc --table /data/orders --key id \
      --select 'CAST(key AS STRING) AS id' --select "from_json(CAST(value AS STRING), 'op STRING, price INT').*" \
      --delete-when "op = 'd'" --drop op --continuous

Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong arguments.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Annotated

from typer import Option

from pyspark_millrace.job import (
    CompactionArguments,
    QueryJob,
    SourceArguments,
    StreamArguments,
    compaction,
    names,
    pair_option,
    run_job,
    run_query,
    source_options,
    sql_option,
    trigger,
)
from pyspark_millrace.job import parse_arguments as parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class Arguments(CompactionArguments, SourceArguments, StreamArguments):
    """Options of this job."""

    topic: Annotated[str, Option(help="topic to read, or several topics of one schema, separated by commas")]
    table: Annotated[
        str, Option(metavar="PATH", help="directory or URI of the Delta table, which is created if it does not exist")
    ]
    key: Annotated[str, Option(metavar="A,B,...", help="columns that identify a row of the table")]
    checkpoint: Annotated[
        str | None, Option(metavar="PATH", help="checkpoint of the query (default: PATH/_checkpoints/upsert)")
    ] = None
    select: Annotated[list[str], sql_option("expression to write, with AS name; repeatable")] = field(
        default_factory=list
    )
    delete_when: Annotated[
        str | None, sql_option("SQL that is true for a change that deletes its row (default: tombstones)")
    ] = None
    order_by: Annotated[
        str | None,
        Option(metavar="A,B,...", help="columns whose largest value is the latest change (default: the offset)"),
    ] = None
    guard: Annotated[
        str | None,
        Option(metavar="COLUMN", help="pass over changes of which this column is not larger than the table's"),
    ] = None
    drop: Annotated[str | None, Option(metavar="A,B,...", help="columns that are used and not written")] = None
    partition_by: Annotated[
        str | None, Option(metavar="A,B,...", help="columns by which a new table is partitioned")
    ] = None
    merge_schema: Annotated[
        bool, Option("--merge-schema", help="add columns to the table that the changes have and it has not")
    ] = False
    option: Annotated[list[str], pair_option("further option of the source")] = field(default_factory=list)


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Read the command line and the configuration. Exits with code 2 if they are invalid."""
    return parse(Arguments, arguments, script=__file__, description=__doc__)


PLACE = ("__topic", "__partition", "__offset", "__tombstone")
"""Columns that determine the latest change and whether it deletes. They are read, but not written."""


def changes(spark: "SparkSession", arguments: Arguments) -> "DataFrame":
    """Return the stream of changes, with the columns that order them."""
    from pyspark_millrace.columns import is_opaque

    options = source_options(arguments, arguments.topic, arguments.option)
    reader = spark.readStream.format("millrace")
    given = names(options.get("columns")) or tuple(reader.options(**options).load().columns)
    added = [name for name in PLACE if name not in given and not (is_opaque(given) and name == "__tombstone")]
    frame = reader.options(**options | {"columns": ",".join([*given, *added])}).load()
    return frame.selectExpr(*arguments.select, *added) if arguments.select else frame


def start_query(spark: "SparkSession", arguments: Arguments, checkpoint: str) -> "StreamingQuery":
    """Start applying the changes. A later run resumes from the checkpoint."""
    from pyspark_millrace.delta import upsert

    into = upsert(
        arguments.table,
        key=names(arguments.key),
        delete_when=arguments.delete_when,
        order_by=names(arguments.order_by),
        guard=arguments.guard,
        drop=names(arguments.drop),
        partition_by=names(arguments.partition_by),
        merge_schema=arguments.merge_schema,
        compaction=compaction(arguments),
    )
    writer = changes(spark, arguments).writeStream.foreachBatch(into).option("checkpointLocation", checkpoint)
    return writer.queryName(f"upsert {arguments.topic}").trigger(**trigger(arguments)).start()


def run(arguments: Arguments, stopping: Event) -> None:
    """Start Spark and apply the changes."""
    # The default is inside the table, under a name that Delta ignores.
    checkpoint = arguments.checkpoint or f"{arguments.table.rstrip('/')}/_checkpoints/upsert"
    job = QueryJob(
        f"upsert {arguments.topic}",
        source=arguments.topic,
        target=arguments.table,
        checkpoint=checkpoint,
        counted="changes",
    )
    run_query(job, arguments, stopping, lambda spark, report: start_query(spark, arguments, checkpoint))


if __name__ == "__main__":
    sys.exit(run_job(run, parse_arguments(sys.argv[1:])))
