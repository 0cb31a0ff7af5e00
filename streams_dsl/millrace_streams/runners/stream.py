"""The streaming runner: a topology as a Structured Streaming query, with exactly-once results in tables and topics.

Packed rows are grouped by bucket and go through ``transformWithState``, once for each stage: one call per bucket and
micro-batch runs the whole stage over all its keys, with state in Spark's own state store (``runners.packed_task``). So
checkpoints, recovery and the pairing of state with offsets are Spark's. Rows that move go from stage to stage within
their micro-batch. What comes out, packed, is written by ``foreachBatch`` in transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
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
from pyspark_millrace.delta.transactions import query_id_of
from pyspark_millrace.interruption import interrupted_in_few_words
from pyspark_millrace.late_processor import LateProcessor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
BATCH_RECORDS: Final = 4_000_000
"""Most records in a micro-batch, by default: a bucket's share is in a worker's memory at once."""
BATCH_RECORDS_STATELESS: Final = 10_000_000
"""The same where records pass in pieces, for nothing is kept or moved: a micro-batch's fixed costs are spread wider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What a micro-batch did: records read, rows by table or topic, records dropped as late or without a key.

    ``dead_letters`` are the records put aside.
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
    """Start a topology as a streaming query; it reads its topics from the earliest offset, then goes on.

    ``tables`` says where each Delta table lies (one path will do for one table). With ``available_now`` the query ends
    when it has read what was there at its start; else it runs every ``interval`` ("10 seconds"), by default without
    pause. ``inputs`` gives streaming DataFrames in the place of topics, ``options`` are further ones of the source.
    ``foreach_batch`` names functions that take a table's or topic's rows in the place of writing them: they are called
    with a DataFrame and the micro-batch's number for each one that has rows, again after a crash. ``dead_letters``
    names a topic for records that a function fails on, or that cannot be read; without it they stop the query.
    ``on_batch`` is called after each micro-batch, ``on_plan`` with the explained plan before the start.

    Raises ``TopologyError`` and its kind for a topology that cannot be run, and ``IncompatibleStateError`` for one that
    cannot go on from the checkpoint, before anything starts.
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
    sinks = Sinks.of(job.plan, tables, bootstrap_servers, foreach_batch, dead_letters)
    admit(Manifest.of(job.stages, job.buckets), checkpoint_files(checkpoint, spark))
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
    """Start the query of a prepared job; arguments are those of ``run_stream``."""
    results = streaming_results(job, spark)
    writer = results.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    writer = writer.foreachBatch(_Writer(job, sinks, on_batch or (lambda report: None)))
    if name is not None:
        writer = writer.queryName(name)
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif interval is not None:
        writer = writer.trigger(processingTime=interval)
    with _query_settings(spark, job.partitions or job.buckets):
        return writer.start()


def streaming_results(job: Job, spark: SparkSession) -> DataFrame:
    """What leaves a topology, as packed rows: its sources' rows through one stage after the other."""
    limit_worker_threads(spark)
    rows: list[DataFrame] = []
    defaults = _source_defaults(job)
    waiting = job.packed(spark, streaming=True, defaults=defaults)
    for worker_stage in job.worker_stages():
        number = worker_stage.stage.number
        rows += [frame for first, frame in waiting if first == number]
        waiting = [(first, frame) for first, frame in waiting if first != number]
        whole = reduce(lambda one, other: one.unionByName(other), rows)
        processor = LateProcessor(PackedTask(worker_stage, sources=job.referred(spark, number, defaults)))
        task = whole.groupBy(spread(whole["bucket"]).alias("bucket")).transformWithState(
            processor, PACKED_DDL, outputMode="update", timeMode="none"
        )
        rows = [task]
    return reduce(lambda one, other: one.unionByName(other), [*rows, *(frame for _, frame in waiting)])


def _source_defaults(job: Job) -> dict[str, str]:
    records = BATCH_RECORDS if job.stages.stages else BATCH_RECORDS_STATELESS
    return {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(records)}


class _Writer:
    """The ``foreachBatch`` function: gives each sink its rows of a micro-batch."""

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


@contextmanager
def _query_settings(spark: SparkSession, partitions: int) -> Iterator[None]:
    """Settings that a query takes over when it starts, into the session that Spark makes for it.

    The number of state partitions is fixed for the life of the checkpoint. More than there are buckets would stay
    empty, more than there are cores would have to wait, and each costs some of every micro-batch's time.
    """
    parallelism = spark.sparkContext.defaultParallelism
    settings = {
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": str(state_partitions(partitions, parallelism)),
        # Small results are in one partition; files are read by as many as before.
        LEAF_PARTITIONS: "1",
        "spark.sql.execution.arrow.localRelationThreshold": str(LOCAL_ROWS_BYTES_MAX),
        "spark.sql.files.minPartitionNum": spark.conf.get("spark.sql.files.minPartitionNum", None) or str(parallelism),
        # Else Spark clones its session whenever a micro-batch is persisted, and removes the clone's files by a process.
        "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
        # Plans are told to listeners for every job of a micro-batch. The other modes say the same at greater length.
        "spark.sql.ui.explainMode": "simple",
    }
    before = {setting: spark.conf.get(setting, None) for setting in settings}
    for setting, value in settings.items():
        spark.conf.set(setting, value)
    try:
        yield
    finally:
        for setting, old in before.items():
            if old is None:
                spark.conf.unset(setting)
            else:
                spark.conf.set(setting, old)
