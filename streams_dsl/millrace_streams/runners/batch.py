"""Batch runner: a topology as one bounded Spark job.

Packed rows are sorted by bucket and offset. Each bucket runs through the same stages as in the stream, with its state
in memory. A table's final rows replace the Delta table in one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from millrace_streams.compiler import explain
from millrace_streams.graph import Topology
from millrace_streams.runners.dead_letters import DEAD_LETTERS
from millrace_streams.runners.output import limit_worker_threads
from millrace_streams.runners.packed_rows import PACKED_DDL
from millrace_streams.runners.results import Results
from millrace_streams.runners.sinks import BatchFunction, Sinks
from millrace_streams.runners.source import Job, JobInputs
from millrace_streams.runners.spreading import PARTITIONS_MAX, spread, state_partitions
from millrace_streams.runners.worker import BoundedRun, WorkerStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """Result of a batch run.

    The result counts the records read, the rows by table or topic, and the records dropped as late or without a key.
    ``dead_letters`` counts the records sent to the dead-letter topic.
    """

    records: int
    rows: Mapping[str, int]
    dropped: int
    dead_letters: int = 0


def run_batch(
    topology: Topology,
    spark: SparkSession,
    *,
    tables: Mapping[str, str] | str | None = None,
    bootstrap_servers: str | None = None,
    inputs: Mapping[str, DataFrame] | None = None,
    options: Mapping[str, Any] | None = None,
    foreach_batch: Mapping[str, BatchFunction] | None = None,
    dead_letters: str | None = None,
    on_plan: Callable[[str], None] | None = None,
) -> BatchResult:
    """Run a topology over the retained records of its topics and overwrite its Delta tables.

    The source's ``options`` select a range (``startingTimestamp``, ``endingOffsets`` ...). Other arguments are as in
    ``run_stream``. The rows equal those of the stream after the same records. Records for topics are appended, again in
    each run. Raises ``TopologyError`` and its subclasses for a topology that cannot run.
    """
    job = Job.prepare(
        topology,
        JobInputs(bootstrap_servers=bootstrap_servers, frames=inputs or {}, options=options or {}),
        puts_aside=dead_letters is not None,
    )
    if on_plan is not None:
        on_plan(explain(job.plan))
    sinks = Sinks.of(job.plan, tables, job.inputs.client, foreach_batch, dead_letters)
    sinks.prepare(spark, replaced=True)
    job = replace(job, writers=sinks.writers, application_id=spark.sparkContext.applicationId)
    frame = bounded_results(job, spark).persist()
    try:
        results = Results.of(frame, job.plan, job.buckets)
        sinks.write_all(results)
    finally:
        frame.unpersist()
    counts = results.counts
    return BatchResult(
        records=counts.records,
        rows=counts.by_name(job.plan),
        dropped=counts.dropped,
        dead_letters=counts.rows[DEAD_LETTERS],
    )


def bounded_results(job: Job, spark: SparkSession) -> DataFrame:
    """Return the packed rows that leave a topology, after all of its stages."""
    limit_worker_threads(spark)
    defaults = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    partitions = state_partitions(job.buckets, PARTITIONS_MAX)

    def run(worker_stage: WorkerStage, rows: DataFrame) -> DataFrame:
        in_order = rows.repartition(partitions, spread(rows["bucket"])).sortWithinPartitions("bucket", "sequence")
        return in_order.mapInArrow(BoundedRun(worker_stage), PACKED_DDL)

    return job.through_stages(job.packed(spark, streaming=False, defaults=defaults), run)
