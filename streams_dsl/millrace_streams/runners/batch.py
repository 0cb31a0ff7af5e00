"""The batch runner: the same topology over what is retained (or any DataFrame), as one bounded Spark job.

Packed rows are sorted by bucket and offset; each bucket then runs through the same task as in the stream, with its
state in memory, and a table's final rows replace the Delta table in one commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace_streams.graph import Topology
from millrace_streams.runners.delta import overwrite
from millrace_streams.runners.output import limit_worker_threads, unpacked
from millrace_streams.runners.packing import OUTPUT_DDL
from millrace_streams.runners.source import Inputs, Job, table_paths
from millrace_streams.runners.worker import BoundedRun, Program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What a batch run wrote: rows by Delta table, and records dropped because they were late or had no key."""

    rows: Mapping[str, int]
    dropped: int


def run_batch(
    topology: Topology,
    spark: SparkSession,
    *,
    tables: Mapping[str, str] | str | None = None,
    bootstrap_servers: str | None = None,
    inputs: Mapping[str, DataFrame] | None = None,
    options: Mapping[str, Any] | None = None,
) -> BatchResult:
    """Run a topology over the retained records of its topics and overwrite its Delta tables.

    A range is chosen by the source's ``options`` (``startingTimestamp``, ``endingOffsets`` ...). ``tables`` and
    ``inputs`` are as in ``run_stream``; the rows are equal to those that the stream comes to after the same records.

    Raises ``TopologyError`` and its kind for a topology that cannot be run.
    """
    job = Job.prepare(
        topology,
        Inputs(bootstrap_servers=bootstrap_servers, frames=inputs or {}, options=options or {}),
    )
    paths = table_paths(job.plan, tables)
    limit_worker_threads(spark)
    packed = job.packed(spark, streaming=False, defaults={"startingOffsets": "earliest", "endingOffsets": "latest"})
    buckets = job.partitions or spark.sparkContext.defaultParallelism
    in_order = packed.repartition(buckets, "bucket").sortWithinPartitions("bucket", "sequence")
    results = in_order.mapInArrow(BoundedRun(Program.of(job.plan)), OUTPUT_DDL).persist()
    try:
        counted = results.groupBy("sink").agg({"rows": "sum", "dropped": "sum"}).collect()
        for sink in job.plan.sinks:
            overwrite(unpacked(results, sink.name, job.plan.sink_layout(sink)), paths[sink.name])
    finally:
        results.unpersist()
    rows = {row["sink"]: row["sum(rows)"] for row in counted}
    return BatchResult(
        rows={sink.table: rows.get(sink.name, 0) for sink in job.plan.sinks if hasattr(sink, "table")},
        dropped=sum(row["sum(dropped)"] for row in counted),
    )
