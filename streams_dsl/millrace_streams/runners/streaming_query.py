"""Streaming runner: a topology as a Structured Streaming query with exactly-once results.

Packed rows are grouped by bucket and go through one ``transformWithState`` per stage. One call per bucket and
micro-batch runs the stage over all keys, with state in Spark's state store (``runners.packed_task``). So Spark handles
checkpoints, recovery and the consistency of state and offsets. Repartitioned rows go from stage to stage within their
micro-batch. ``foreachBatch`` writes the packed output in transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import UsageError
from millrace_streams.checkpoints.compatibility import admit
from millrace_streams.checkpoints.files import checkpoint_files
from millrace_streams.checkpoints.manifest import Manifest
from millrace_streams.compiler import explain
from millrace_streams.graph import Topology
from millrace_streams.runners.dead_letters import DEAD_LETTERS
from millrace_streams.runners.output import limit_worker_threads
from millrace_streams.runners.packed_rows import PACKED_DDL
from millrace_streams.runners.packed_task import PackedTask
from millrace_streams.runners.results import LEAF_PARTITIONS, LOCAL_ROWS_BYTES_MAX, Counts, Results
from millrace_streams.runners.sinks import BatchFunction, Sinks
from millrace_streams.runners.source import Job, JobInputs
from millrace_streams.runners.spreading import spread, state_partitions
from millrace_streams.runners.worker import WorkerStage
from pyspark_millrace.delta.transactions import query_id_of
from pyspark_millrace.interruption import interrupted_in_few_words
from pyspark_millrace.late_processor import LateProcessor
from pyspark_millrace.session_settings import set_for_now

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
BATCH_RECORDS: Final = 4_000_000
"""Default maximum of records in a micro-batch, because a worker holds a bucket's share in memory."""
BATCH_RECORDS_STATELESS: Final = 10_000_000
"""Default maximum for stateless plans, which process records in pieces. It spreads a micro-batch's fixed cost wider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Report of a micro-batch.

    The report counts the records read, the rows by table or topic, and the records dropped as late or without a key.
    ``dead_letters`` counts the records sent to the dead-letter topic.
    """

    batch_id: int
    records: int
    rows: Mapping[str, int]
    dropped: int
    dead_letters: int = 0


def run_stream(
    topology: Topology,
    spark: SparkSession,
    *,
    checkpoint: str,
    tables: Mapping[str, str] | str | None = None,
    bootstrap_servers: str | None = None,
    inputs: Mapping[str, DataFrame] | None = None,
    options: Mapping[str, Any] | None = None,
    available_now: bool = False,
    interval: str | None = None,
    name: str | None = None,
    foreach_batch: Mapping[str, BatchFunction] | None = None,
    dead_letters: str | None = None,
    on_batch: Callable[[BatchReport], None] | None = None,
    on_plan: Callable[[str], None] | None = None,
) -> StreamingQuery:
    """Start a topology as a streaming query, which reads its topics from the earliest offset.

    ``tables`` has the path of each Delta table; one path is enough for one table. With ``available_now`` the query ends
    at the offsets that were the latest at its start. Otherwise it runs every ``interval`` ("10 seconds"), by default
    without pause. ``inputs`` has streaming DataFrames in place of topics; ``options`` are further options of the
    source. Those of clients, such as ``kafka.security.protocol``, are for the sinks too.

    ``foreach_batch`` has functions that receive a table's or topic's rows in place of a write. Each is called with a
    DataFrame and the number of every micro-batch with rows, and again after a crash. ``dead_letters`` names a topic for
    records on which a function fails, or that cannot be read; without it they fail the query. ``on_batch`` is called
    after each micro-batch, ``on_plan`` with the explained plan before the start.

    Raises ``TopologyError`` and its subclasses for a topology that cannot run, and ``IncompatibleStateError`` for one
    that cannot resume from the checkpoint, before anything starts.
    """
    if available_now and interval is not None:
        raise UsageError("available_now and interval exclude each other: a query that ends has no interval")
    job = Job.prepare(
        topology,
        JobInputs(bootstrap_servers=bootstrap_servers, frames=inputs or {}, options=options or {}),
        puts_aside=dead_letters is not None,
    )
    if on_plan is not None:
        on_plan(explain(job.plan))
    sinks = Sinks.of(job.plan, tables, job.inputs.client, foreach_batch, dead_letters)
    letters = {DEAD_LETTERS: dead_letters} if dead_letters is not None else {}
    manifest = admit(
        Manifest.of(job.stages, job.buckets, job.kept_partitions, letters), checkpoint_files(checkpoint, spark)
    )
    sinks = replace(sinks, ids={sink.node: sink.id for sink in manifest.sinks})
    sinks.prepare(spark)
    job = replace(job, writers=sinks.writers)
    return start(
        job,
        sinks,
        spark,
        checkpoint=checkpoint,
        available_now=available_now,
        interval=interval,
        name=name,
        on_batch=on_batch,
    )


def start(
    job: Job,
    sinks: Sinks,
    spark: SparkSession,
    *,
    checkpoint: str,
    available_now: bool = False,
    interval: str | None = None,
    name: str | None = None,
    on_batch: Callable[[BatchReport], None] | None = None,
) -> StreamingQuery:
    """Start the query of a prepared job; the arguments are those of ``run_stream``."""
    results = streaming_results(job, spark)
    writer = results.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    writer = writer.foreachBatch(_Writer(job, sinks, on_batch or (lambda report: None)))
    if name is not None:
        writer = writer.queryName(name)
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif interval is not None:
        writer = writer.trigger(processingTime=interval)
    with set_for_now(spark, _query_settings(spark, job.partitions or job.buckets)):
        return writer.start()


def streaming_results(job: Job, spark: SparkSession) -> DataFrame:
    """Return the packed rows that leave a topology, after all of its stages."""
    limit_worker_threads(spark)
    records = BATCH_RECORDS if job.stages.stages else BATCH_RECORDS_STATELESS
    defaults = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(records)}

    def run(worker_stage: WorkerStage, rows: DataFrame) -> DataFrame:
        sources = job.referred(spark, worker_stage.stage.number, defaults)
        processor = LateProcessor(PackedTask(worker_stage, sources=sources))
        return rows.groupBy(spread(rows["bucket"]).alias("bucket")).transformWithState(
            processor, PACKED_DDL, outputMode="update", timeMode="none"
        )

    return job.through_stages(job.packed(spark, streaming=True, defaults=defaults), run)


class _Writer:
    """The ``foreachBatch`` function, which passes each sink its rows of a micro-batch."""

    def __init__(self, job: Job, sinks: Sinks, on_batch: Callable[[BatchReport], None]) -> None:
        self._plan = job.plan
        self._buckets = job.buckets
        self._sinks = sinks
        self._on_batch = on_batch

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        with interrupted_in_few_words():
            counts = self._write(frame, batch_id)
        self._on_batch(
            BatchReport(
                batch_id=batch_id,
                records=counts.records,
                rows=counts.by_name(self._plan),
                dropped=counts.dropped,
                dead_letters=counts.rows[DEAD_LETTERS],
            )
        )

    def _write(self, frame: DataFrame, batch_id: int) -> Counts:
        frame = frame.persist()
        try:
            results = Results.of(frame, self._plan, self._buckets)
            self._sinks.write(results, query_id_of(frame.sparkSession), batch_id)
        finally:
            frame.unpersist()
        return results.counts


def _query_settings(spark: SparkSession, partitions: int) -> dict[str, str]:
    """Return the session settings that a query copies at its start.

    The number of state partitions is fixed for the life of the checkpoint. More partitions than buckets would be empty,
    and more than cores would wait; each costs time in every micro-batch.
    """
    parallelism = spark.sparkContext.defaultParallelism
    return {
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": str(state_partitions(partitions, parallelism)),
        # Small results use one partition; files are read by as many as before.
        LEAF_PARTITIONS: "1",
        "spark.sql.execution.arrow.localRelationThreshold": str(LOCAL_ROWS_BYTES_MAX),
        "spark.sql.files.minPartitionNum": spark.conf.get("spark.sql.files.minPartitionNum", None) or str(parallelism),
        # Otherwise Spark clones its session for every persisted micro-batch, and starts a process to remove the clone's
        # files.
        "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
        # Listeners get the plan of every job of a micro-batch; the other modes print the same at greater length.
        "spark.sql.ui.explainMode": "simple",
    }
