"""The streaming runner: a topology as a Structured Streaming query, with exactly-once results in Delta tables.

Packed rows are grouped by bucket and go through ``transformWithState``: one call per bucket and micro-batch runs the
whole task over all its keys, with state as packed chunks in Spark's own state store. So checkpoints, recovery and the
pairing of state with offsets are Spark's. What comes out, packed, is written by ``foreachBatch`` under Delta
transactions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millrace.errors import UsageError
from millrace_streams.compiler import explain
from millrace_streams.graph import DeltaSinkNode, Topology
from millrace_streams.runners.delta import ensure_table, upsert
from millrace_streams.runners.output import count_outputs, limit_worker_threads, spark_schema, unpacked
from millrace_streams.runners.packing import OUTPUT_DDL
from millrace_streams.runners.source import Inputs, Job, table_paths
from millrace_streams.runners.state import load, writes
from millrace_streams.runners.worker import OutputRow, Program, Run, StatelessRun, frames_of, records_of, total_dropped
from millrace_streams.steps.batch import TOMBSTONE
from pyspark_millrace.delta.transactions import Transaction, append_rows, query_id_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS_UNKNOWN: Final = 8
_SOURCE_DEFAULTS: Final = {
    "startingOffsets": "earliest",
    # A bucket's share of a micro-batch is in a worker's memory at once.
    "maxOffsetsPerTrigger": "2000000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What a micro-batch did: records read, rows written by Delta table, records dropped as late or without a key."""

    batch_id: int
    records: int
    rows: Mapping[str, int]
    dropped: int


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
    on_batch: Callable[[BatchReport], None] | None = None,
    on_plan: Callable[[str], None] | None = None,
) -> StreamingQuery:
    """Start a topology as a streaming query; it reads its topics from the earliest offset, then goes on.

    ``tables`` says where each Delta table lies (one path will do for one table). With ``available_now`` the query ends
    when it has read what was there at its start; else it runs every ``interval`` ("10 seconds"), by default without
    pause. ``inputs`` gives streaming DataFrames in the place of topics, ``options`` are further ones of the source.
    ``on_batch`` is called after each micro-batch, ``on_plan`` with the explained plan before the start.

    Raises ``TopologyError`` and its kind for a topology that cannot be run, before anything starts.
    """
    if available_now and interval is not None:
        raise UsageError("available_now and interval exclude each other: a query that ends has no interval")
    job = Job.prepare(
        topology,
        Inputs(bootstrap_servers=bootstrap_servers, frames=inputs or {}, options=options or {}),
    )
    if on_plan is not None:
        on_plan(explain(job.plan))
    paths = table_paths(job.plan, tables)
    for sink in job.plan.sinks:
        ensure_table(spark, paths[sink.name], spark_schema(job.plan.sink_layout(sink)))
    limit_worker_threads(spark)
    packed = job.packed(spark, streaming=True, defaults=_SOURCE_DEFAULTS)
    program = Program.of(job.plan)
    if job.plan.stateful:
        results = packed.groupBy("bucket").transformWithState(
            PackedTask(program), OUTPUT_DDL, outputMode="update", timeMode="none"
        )
    else:
        results = packed.mapInArrow(StatelessRun(program), OUTPUT_DDL)
    writer = results.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    writer = writer.foreachBatch(_Writer(job, paths, on_batch or (lambda report: None)))
    if name is not None:
        writer = writer.queryName(name)
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif interval is not None:
        writer = writer.trigger(processingTime=interval)
    with _state_settings(spark, job.partitions):
        return writer.start()


class PackedTask(StatefulProcessor):  # type: ignore[misc]
    """The stateful processor of a task: a bucket's packed rows in, packed outputs out, state in packed chunks."""

    def __init__(self, program: Program) -> None:
        """Carry ``program`` to the worker."""
        self._program = program
        self._states: dict[str, Any] = {}

    def init(self, handle: Any) -> None:
        """Open one list of chunks per store."""
        for spec in self._program.stores:
            self._states[spec.name] = handle.getListState(state_name(spec.name), "chunk BINARY")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Run a bucket's part of a micro-batch. Argument names are Spark's: it passes them by keyword."""
        runs = [Run(key[0], row.source, row.sequence, row.records, row.payload) for row in rows]
        chunks = {name: [bytes(row[0]) for row in state.get()] for name, state in self._states.items()}
        stores = {spec.name: load(spec, chunks[spec.name]) for spec in self._program.stores}
        result = self._program.run(self._program.task(stores), records_of(runs), key[0])
        for name, write in writes(stores, chunks, result).items():
            values = [(chunk,) for chunk in write.chunks]
            if write.replace:
                self._states[name].put(values)
            else:
                self._states[name].appendList(values)
        counts = OutputRow(records=sum(run.records for run in runs), dropped=total_dropped(result))
        for output in (*self._program.pack(frames_of(result)), counts):
            yield Row(**asdict(output))

    def close(self) -> None:
        """Nothing is held open."""


def state_name(store: str) -> str:
    """The name of a store in Spark's state store, as the state reader takes it."""
    return re.sub(r"\W", "_", store)


class _Writer:
    """The ``foreachBatch`` function: writes each sink's rows of a micro-batch under its own Delta transaction."""

    def __init__(self, job: Job, paths: Mapping[str, str], on_batch: Callable[[BatchReport], None]) -> None:
        self._job = job
        self._paths = paths
        self._on_batch = on_batch

    def __call__(self, results: DataFrame, batch_id: int) -> None:
        # The task must run once, and whole, whatever the sinks read of it: its state is committed by that run.
        results = results.persist()
        try:
            counts = count_outputs(results, self._job.plan)
            for sink in self._job.plan.delta_sinks:
                if counts.rows[sink.table]:
                    self._write(results, sink, batch_id)
        finally:
            results.unpersist()
        self._on_batch(BatchReport(batch_id=batch_id, records=counts.records, rows=counts.rows, dropped=counts.dropped))

    def _write(self, results: DataFrame, sink: DeltaSinkNode, batch_id: int) -> None:
        layout = self._job.plan.sink_layout(sink)
        query_id = query_id_of(results.sparkSession)
        transaction = Transaction(application=f"{query_id}/{sink.name}", version=batch_id)
        deletes = self._job.plan.deletes(sink)
        rows = unpacked(results, sink.name, layout, deletes=deletes)
        if layout.table:
            upsert(rows, self._paths[sink.name], layout.row_key, transaction, mark=TOMBSTONE if deletes else None)
        else:
            append_rows(rows, self._paths[sink.name], transaction)


@contextmanager
def _state_settings(spark: SparkSession, partitions: int | None) -> Iterator[None]:
    """Settings that a query takes over when it starts: RocksDB with a changelog, a fitting number of state partitions.

    That number is fixed for the life of the checkpoint; more than there are buckets would stay empty.
    """
    cores = spark.sparkContext.defaultParallelism
    settings = {
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": str(min(partitions or _PARTITIONS_UNKNOWN, 2 * cores)),
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
