"""The batch runner: the same topology over what is retained (or any DataFrame), as one bounded Spark job.

Packed rows are sorted by bucket and offset; each bucket then runs through the same task as in the stream, with its
state in memory, and a table's final rows replace the Delta table in one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace_streams.compiler import explain
from millrace_streams.graph import Topology
from millrace_streams.runners.delta import overwrite
from millrace_streams.runners.output import count_outputs, limit_worker_threads, unpacked
from millrace_streams.runners.packing import OUTPUT_DDL
from millrace_streams.runners.source import Inputs, Job, table_paths
from millrace_streams.runners.worker import BoundedRun, Program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What a batch run did: records read, rows written by Delta table, records dropped as late or without a key."""

    records: int
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
    on_plan: Callable[[str], None] | None = None,
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
    if on_plan is not None:
        on_plan(explain(job.plan))
    paths = table_paths(job.plan, tables)
    limit_worker_threads(spark)
    packed = job.packed(spark, streaming=False, defaults={"startingOffsets": "earliest", "endingOffsets": "latest"})
    buckets = job.partitions or spark.sparkContext.defaultParallelism
    in_order = packed.repartition(buckets, "bucket").sortWithinPartitions("bucket", "sequence")
    results = in_order.mapInArrow(BoundedRun(Program.of(job.plan)), OUTPUT_DDL).persist()
    try:
        counts = count_outputs(results, job.plan)
        for sink in job.plan.delta_sinks:
            overwrite(unpacked(results, sink.name, job.plan.sink_layout(sink)), paths[sink.name])
    finally:
        results.unpersist()
    return BatchResult(records=counts.records, rows=counts.rows, dropped=counts.dropped)
