#!/usr/bin/env python3
r"""Exactly-once copy of a topic to another topic.

Spark's checkpoint records the offsets of each micro-batch, and the brokers record the last batch committed for it. A
job that is killed at any moment resumes when it is run again. Readers with isolation.level=read_committed miss no
record and see none twice. By default the job reads the records that the topic holds and ends. With --continuous it runs
until it is stopped (SIGTERM or Ctrl-C stop it cleanly).

A copy keeps key, value, headers and timestamp of each record, or the columns of a typed topic. The records of a
partition stay in order. If order does not matter, --source-option splitPartitions=true lets several tasks read a
partition. The options --select and --where change the copy with Spark SQL over the source's columns. The option
--columns reads other columns, such as __offset.

  python jobs/topic_to_topic.py --source orders --target orders_copy --checkpoint /data/checkpoints/orders_copy
  spark-submit jobs/topic_to_topic.py --source orders --target large_orders --checkpoint /data/checkpoints/large \
      --columns id,price --where 'price > 1000' --continuous

Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong arguments.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from pyspark_millrace.job import (
    QueryJob,
    SourceArguments,
    StreamArguments,
    pair_option,
    pairs,
    run_job,
    run_query,
    source_options,
    sql_option,
    trigger,
)
from pyspark_millrace.job import parse_arguments as parse
from pyspark_millrace.options.source import with_whole_partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class Arguments(SourceArguments, StreamArguments):
    """Options of this job."""

    source: Annotated[
        str, Option(metavar="TOPIC", help="topic to read, or several topics of one schema, separated by commas")
    ]
    target: Annotated[str, Option(metavar="TOPIC", help="topic to write to")]
    checkpoint: Annotated[
        str, Option(metavar="PATH", help="checkpoint of the query; a separate one for each job and target")
    ]
    target_bootstrap_servers: Annotated[
        str | None, Option(metavar="HOST:PORT,...", help="brokers of the target (default: the same)")
    ] = None
    select: Annotated[list[str], sql_option("expression to write, with AS name; repeatable")] = field(
        default_factory=list
    )
    where: Annotated[str | None, sql_option("write only rows for which this is true")] = None
    keep_partitions: Annotated[
        bool,
        Option("--keep-partitions", help="write each record to the partition with the number of its source partition"),
    ] = False
    delivery_guarantee: Annotated[
        Literal["exactly-once", "at-least-once"],
        Option(help="exactly-once, or at-least-once, which is faster but can write a batch twice after a failure"),
    ] = "exactly-once"
    source_option: Annotated[list[str], pair_option("further option of the source")] = field(default_factory=list)
    sink_option: Annotated[list[str], pair_option("further option of the sink")] = field(default_factory=list)


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Read the command line and the configuration. Exits with code 2 if they are invalid."""
    return parse(Arguments, arguments, script=__file__, description=__doc__)


def sink_options(arguments: Arguments) -> dict[str, str]:
    """Return the options of the sink."""
    elsewhere = arguments.target_bootstrap_servers
    return (
        ({"kafka.bootstrap.servers": elsewhere} if elsewhere else arguments.spark_options)
        | {
            "topic": arguments.target,
            "deliveryGuarantee": arguments.delivery_guarantee,
            "checkpointLocation": arguments.checkpoint,
        }
        | pairs(arguments.sink_option)
    )


def whole_record(names: Sequence[str], *, keep_partitions: bool) -> list[str]:
    """Return the columns that make up a full copy of a record, given a topic's default columns."""
    from pyspark_millrace.columns import is_opaque

    if is_opaque(names):
        columns = ["key", "value", "headers", "timestamp"]
        return [*columns, "partition"] if keep_partitions else columns
    columns = [*names, "__timestamp", "__headers", "__tombstone"]
    return [*columns, "__partition"] if keep_partitions else columns


def rows_to_write(spark: "SparkSession", arguments: Arguments) -> "DataFrame":
    """Return the stream of rows to write."""
    # Tasks write at the same time. Splits of a partition in several tasks would mix its records.
    options = with_whole_partitions(source_options(arguments, arguments.source, arguments.source_option))
    reader = spark.readStream.format("millrace")
    if "columns" not in options:
        names = reader.options(**options).load().columns
        options["columns"] = ",".join(whole_record(names, keep_partitions=arguments.keep_partitions))
    frame = reader.options(**options).load()
    if arguments.where is not None:
        frame = frame.where(arguments.where)
    return frame.selectExpr(*arguments.select) if arguments.select else frame


def start_query(spark: "SparkSession", arguments: Arguments) -> "StreamingQuery":
    """Start writing. A later run resumes from the checkpoint."""
    writer = rows_to_write(spark, arguments).writeStream.format("millrace").options(**sink_options(arguments))
    name = f"{arguments.source} to {arguments.target}"
    return writer.queryName(name).outputMode("append").trigger(**trigger(arguments)).start()


def run(arguments: Arguments, stopping: Event) -> None:
    """Start Spark and write."""
    job = QueryJob(
        f"{arguments.source} to {arguments.target}",
        source=arguments.source,
        target=arguments.target,
        checkpoint=arguments.checkpoint,
        counted="rows read",
        delta=False,
    )
    run_query(job, arguments, stopping, lambda spark, report: start_query(spark, arguments))


if __name__ == "__main__":
    sys.exit(run_job(run, parse_arguments(sys.argv[1:])))
