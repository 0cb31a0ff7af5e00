"""Code of a Spark worker: prologues of sources, stages of buckets.

Packed rows come in and go out (``runners.packed_rows``). The caller owns the state of a bucket: Spark's state store for
a stream, this process for a batch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple, cast

import polars as pl
import pyarrow as pa

from millrace_streams.compiler import Plan
from millrace_streams.compiler.plan import Edge
from millrace_streams.compiler.stages import Send, Stage, Stages
from millrace_streams.errors import IncompatibleStateError, UserFunctionError
from millrace_streams.frames.packed import pack_frame
from millrace_streams.graph import DeltaSinkNode, TopicSinkNode
from millrace_streams.layout import Layout
from millrace_streams.runners.bucket_tasks import KeptTasks, LivingTask, Tasks
from millrace_streams.runners.dead_letters import DeadLetter, as_bytes, packed_letters, run_without_bad
from millrace_streams.runners.output import gone, newest_rows
from millrace_streams.runners.packed_rows import (
    BYTES_PER_PAYLOAD_MAX,
    OUT,
    ROWS_PER_PAYLOAD,
    Packed,
    from_batch,
    of_piece,
    to_batches,
)
from millrace_streams.runners.shuffle import Roots, arrive, by_bucket, head_frame, repartition_frame
from millrace_streams.runners.topic_rows import WRITTEN, OpaqueRows
from millrace_streams.state.variables import MemoryVariables
from millrace_streams.steps import Operator
from millrace_streams.steps.batch import HEADERS, OFFSET, PARTITION, TIMESTAMP, TOMBSTONE, TOPIC
from millrace_streams.steps.flow import Flow
from millrace_streams.steps.operator import AnyStore, AnyStoreSpec
from millrace_streams.steps.reader import Reader
from millrace_streams.steps.task import Steps, Task, TaskResult
from pyspark_millrace.sink.identity import QUERY_ID


@dataclass(frozen=True, slots=True)
class Sink:
    """Output of a node.

    ``layout`` describes the rows, and ``reserved`` names the reserved columns beside it. With ``deletes`` the rows are
    of a table, and some delete the row of their key. The reserved column of headers is present only if a record has
    headers.
    """

    name: str
    layout: Layout
    deletes: bool = False
    reserved: tuple[str, ...] = ()

    def rows(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the output rows of a task's result: for a table the newest row of each key."""
        reserved = [name for name in self.reserved if name != HEADERS or name in frame.columns]
        if self.deletes:
            frame = frame.with_columns(gone(frame.columns, self.layout).alias(TOMBSTONE))
        elif TOMBSTONE in self.reserved:
            there = pl.col(TOMBSTONE).fill_null(False) if TOMBSTONE in frame.columns else pl.lit(False)
            frame = frame.with_columns(there.alias(TOMBSTONE))
        return newest_rows(frame.select(*self.layout.names, *reserved), self.layout)


def sinks_of(plan: Plan) -> dict[str, Sink]:
    """Return the sinks of a plan by node name, including visible repartition topics."""
    sinks = {}
    for node in plan.outputs:
        layout = plan.layouts[node.name]
        if isinstance(node, DeltaSinkNode):
            deletes = plan.deletes(node)
            sinks[node.name] = Sink(node.name, layout, deletes, (TOMBSTONE,) if deletes else ())
        else:
            named = (TOPIC,) if isinstance(node, TopicSinkNode) and node.extractor is not None else ()
            sinks[node.name] = Sink(node.name, layout, reserved=(TIMESTAMP, TOMBSTONE, HEADERS, *named))
    return sinks


def written_sink(sink: Sink) -> Sink:
    """Return the sink of a topic of bytes, whose rows are bytes already."""
    return replace(sink, layout=WRITTEN, reserved=tuple(name for name in sink.reserved if name != TOMBSTONE))


@dataclass(frozen=True)
class WorkerStage:
    """A stage or prologue as sent to workers. ``buckets`` is the number of buckets for repartitioned rows.

    ``topics`` are the plan's source topics; ``topic_of`` numbers the topic of nodes whose records are all of one. With
    ``puts_aside`` failing records become dead letters; otherwise they fail the query. ``writers`` are those of sinks to
    topics of bytes. ``application_id`` is empty in a stream, whose tasks know the query's id.
    """

    stage: Stage
    sinks: Sequence[Sink]
    forks: Mapping[Edge, tuple[int, int, int]]
    repartition_numbers: Mapping[str, int]
    subtopologies: Mapping[str, int]
    topics: Sequence[str]
    topic_of: Mapping[str, int]
    buckets: int
    puts_aside: bool = False
    writers: Mapping[str, OpaqueRows] = field(default_factory=dict)
    application_id: str = ""

    @classmethod
    def of(
        cls,
        stages: Stages,
        stage: Stage,
        buckets: int,
        *,
        puts_aside: bool = False,
        writers: Mapping[str, OpaqueRows] | None = None,
        application_id: str = "",
    ) -> WorkerStage:
        """Extract the parts of a plan that a worker needs for one stage."""
        own = {node.name: writer for node in stage.outputs if (writer := (writers or {}).get(node.name))}
        sinks = {name: written_sink(sink) if name in own else sink for name, sink in sinks_of(stages.plan).items()}
        topics = list(dict.fromkeys(reader.source.topic for reader in stages.plan.readers))
        topic_of = {}
        for reader, prologue in zip(stages.plan.readers, stages.prologues, strict=True):
            for name in (reader.head, *(operator.node.name for operator in prologue.operators)):
                topic_of[name] = topics.index(reader.source.topic)
        outputs = [sinks[node.name] for node in stage.outputs]
        repartition_numbers, subtopologies = stages.plan.repartition_numbers, stages.plan.subtopologies
        return cls(
            stage,
            outputs,
            stages.forks,
            repartition_numbers,
            subtopologies,
            topics,
            topic_of,
            buckets,
            puts_aside,
            own,
            application_id,
        )

    @cached_property
    def steps(self) -> Steps:
        """The steps, created once per worker."""
        operators = [*self.stage.operators, *map(_ending, self.stage.sends)]
        received = [send.node for send in self.stage.receives]
        return Steps.of(operators, self.forks, self.repartition_numbers, self.subtopologies, received)

    @property
    def stores(self) -> list[AnyStoreSpec]:
        """The stores of the stage."""
        return self.steps.stores()

    def task(self, bucket: int, stores: Mapping[str, AnyStore] | None = None) -> Task:
        """Create the task of one bucket, with its stores or empty ones."""
        return Task(self.steps, dict(stores or {}), bucket, self.application_id or query_id_of_task())

    def arrive(self, frames: Mapping[str, pl.DataFrame], bucket: int) -> tuple[dict[str, Flow], Roots]:
        """Return the arrived rows as flows in record order."""
        return arrive(frames, self._layouts, self.topic_of, bucket, self.steps.fork_count)

    def run(self, tasks: Tasks, runs: Iterable[Packed], bucket: int) -> Outcome:
        """Run the packed rows of a bucket through its task."""
        frames: dict[str, list[Packed]] = {}
        for run in sorted(runs, key=lambda run: run.sequence):
            frames.setdefault(run.target, []).append(run)
        arrivals, roots = self.arrive({name: _unpacked(found) for name, found in sorted(frames.items())}, bucket)
        if self.puts_aside:
            run_part = partial(self.run_flows, roots=roots, wall_clock_ms=_now_ms())
            return Outcome(*run_without_bad(run_part, tasks, arrivals, roots, self.topics), roots)
        task = tasks.begin()
        result = self.run_flows(task, arrivals, roots, wall_clock_ms=_now_ms())
        tasks.end(task, result)
        return Outcome(result, [], roots)

    def run_flows(
        self,
        task: Task,
        arrivals: Mapping[str, Flow],
        roots: Roots,
        *,
        wall_clock_ms: int,
        aside: Collection[tuple[int, int]] = (),
    ) -> TaskResult:
        """Run flows through a task, and convert the output of sinks to topics of bytes.

        ``aside`` has the released rows to leave out.
        """
        origin = roots.origin(self.topics)
        result = task.run(arrivals, origin, wall_clock_ms=wall_clock_ms, aside=aside)
        written = {name: writer.written(result.outputs[name], origin) for name, writer in self.writers.items()}
        return replace(result, outputs={**result.outputs, **written})

    def packed(self, outcome: Outcome, bucket: int, sinks: Iterable[Sink] | None = None) -> Iterator[Packed]:
        """Yield the output of some sinks (default: all), and the rows for later stages."""
        outputs = outcome.result.outputs
        for sink in self.sinks if sinks is None else sinks:
            flow = outputs[sink.name]
            frame = flow.batch.frame
            if HEADERS in sink.reserved and (headers := outcome.roots.headers_of(flow.marks)) is not None:
                frame = frame.with_columns(headers.alias(HEADERS))
            frame = sink.rows(frame)
            if frame.height:
                yield Packed(OUT, bucket, sink.name, rows=frame.height, payload=pack_frame(frame))
        yield from packed_letters(outcome.letters, bucket)
        for send in self.stage.sends:
            if send.way == "key":
                yield from self._sent(send, outputs[_ending(send).node.name], outcome.roots)

    def _sent(self, send: Send, flow: Flow, roots: Roots) -> Iterator[Packed]:
        if not flow.batch.height:
            return
        several = len(self.topics) > 1 and send.node not in self.topic_of
        frame = repartition_frame(flow, roots, pickled=send.pickled, topic=several)
        for bucket, part in by_bucket(frame, send.key, self.buckets):
            payload = pack_frame(part)
            yield Packed(send.stage, bucket, send.node, int(part[OFFSET][0]), part.height, payload=payload)

    @cached_property
    def _layouts(self) -> dict[str, Layout]:
        return {send.node: send.layout for send in self.stage.receives}


class Outcome(NamedTuple):
    """Result of a bucket's batch: output, dead letters, and the input records."""

    result: TaskResult
    letters: list[DeadLetter]
    roots: Roots


def query_id_of_task() -> str:
    """Return the id of the streaming query of the current Spark task; empty outside of one."""
    from pyspark import TaskContext

    task = TaskContext.get()
    return "" if task is None else task.getLocalProperty(QUERY_ID) or ""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _ending(send: Send) -> Operator:
    """Return the sink of rows that are sent from a stage."""
    node = TopicSinkNode(name=f"{send.node} to stage {send.stage}", parents=(send.node,), topic="")
    return Operator(node=node, inputs=(send.layout,), result=send.layout)


def _unpacked(runs: Sequence[Packed]) -> pl.DataFrame:
    """Concatenate the rows of several runs."""
    frames = [run.frame for run in runs]
    if len(frames) == 1:
        return frames[0]
    rows = pl.concat(frames, how="diagonal", rechunk=True)
    if TOMBSTONE in rows.columns:
        # Runs without a tombstone lack the tombstone column.
        return rows.with_columns(pl.col(TOMBSTONE).fill_null(False))
    return rows


@dataclass(frozen=True)
class SourceRun:
    """Prologue of a source, with packing of the remaining rows.

    It is a callable for ``mapInArrow`` and for the source's ``transform``. It takes batches of the source's columns,
    ``__offset``, ``__timestamp`` (a timestamp), ``__partition``, and optionally ``__sequence``, and yields packed rows.
    Within one partition the batches must come in offset order, as the source reads them. Rows of a broadcast source go
    to all buckets of a stage; ``everywhere`` has their number. ``source_number`` numbers the sources of one topic.
    ``packs`` is false if the rows stay in the worker; rows for the bucket of their partition are then a frame.
    ``partitions`` is the topic's number of partitions when the query started, if a store depends on it. Keys move to
    partitions that are added later, and would start again there.
    """

    reader: Reader
    worker_stage: WorkerStage
    source_number: int
    everywhere: Mapping[int, int]
    packs: bool = True
    partitions: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack a task's batches."""
        return to_batches(self.rows(batches))

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Packed]:
        """Yield the packed rows of a task's batches."""
        pending: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        is_first = True
        for batch in batches:
            pending.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
            if rows >= ROWS_PER_PAYLOAD or size_bytes >= BYTES_PER_PAYLOAD_MAX:
                yield from of_piece(self._packed(pending), is_first=is_first)
                pending, rows, size_bytes, is_first = [], 0, 0, False
        yield from of_piece(self._packed(pending), is_first=is_first)

    def _packed(self, batches: list[pa.RecordBatch]) -> Iterator[Packed]:
        if not batches:
            return
        decoded = cast("pl.DataFrame", pl.from_arrow(pa.Table.from_batches(batches)))
        decoded = decoded.with_columns(pl.col(TIMESTAMP).dt.timestamp("ms"))
        for partition, run in _by_partition(decoded):
            self._check_partition(partition)
            first = Packed(OUT, partition, records=run.height)
            for row in self._run(run, partition):
                if row.rows or row.dropped:
                    # The first row carries the number of records read.
                    yield row._replace(records=first.records)
                    first = first._replace(records=0)
            if first.records:
                yield first

    def _check_partition(self, partition: int) -> None:
        if self.partitions is not None and partition >= self.partitions:
            source = self.reader.source
            raise IncompatibleStateError(
                f"{source.name}: {source.topic}-{partition} is new, but the query's state is of {self.partitions} "
                f"partitions of {source.topic}, whose keys may now be in others: start with a new checkpoint"
            )

    def _run(self, run: pl.DataFrame, partition: int) -> Iterator[Packed]:
        try:
            # Run completely before the first row is yielded.
            rows = list(self._run_all(run, partition))
        except UserFunctionError as error:
            if not self.worker_stage.puts_aside:
                raise
            if run.height > 1:
                middle = run.height // 2
                yield from self._run(run[:middle], partition)
                yield from self._run(run[middle:], partition)
                return
            rows = list(packed_letters([self._letter(error, run)], partition))
        yield from rows

    def _letter(self, error: UserFunctionError, run: pl.DataFrame) -> DeadLetter:
        [record] = run.to_dicts()
        source, layout = self.reader.source, self.reader.layout
        key = [record[name] for name in layout.key if name in record]
        values = {name: record[name] for name in layout.value_columns if name in record}
        return DeadLetter(
            source.topic,
            int(record[PARTITION]),
            int(record[OFFSET]),
            error.node or source.name,
            error.message,
            as_bytes(key[0] if len(key) == 1 else key or None),
            as_bytes(values.get(layout.value, values) if layout.value is not None else values),
            record[TIMESTAMP] or 0,
        )

    def _run_all(self, run: pl.DataFrame, partition: int) -> Iterator[Packed]:
        read, dropped = self.reader.run(run, partition)
        if dropped:
            yield Packed(OUT, partition, dropped=dropped)
        frame = head_frame(read, self.source_number, goes_first=self.reader.source.broadcast)
        for send in self.worker_stage.stage.sends:
            if send.way != "key" and frame.height:
                payload, sequence = pack_frame(frame) if self.packs else frame, int(run[OFFSET][0])
                for bucket in [partition] if send.way == "partition" else range(self.everywhere[send.stage]):
                    yield Packed(send.stage, bucket, send.node, sequence, frame.height, payload=payload)
        worker_stage = self.worker_stage
        if not worker_stage.stage.operators and all(send.way != "key" for send in worker_stage.stage.sends):
            return
        head = worker_stage.stage.head
        assert head is not None
        layouts = {head: self.reader.operators[-1].result if self.reader.operators else self.reader.layout}
        forks = worker_stage.steps.fork_count
        arrivals, roots = arrive({head: frame}, layouts, worker_stage.topic_of, partition, forks)
        task = worker_stage.task(partition)
        result = worker_stage.run_flows(task, arrivals, roots, wall_clock_ms=_now_ms())
        yield from worker_stage.packed(Outcome(result, [], roots), partition)
        yield Packed(OUT, partition, dropped=total_dropped(result))


def _by_partition(decoded: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield records by partition; those of a single partition, as from a topic's reader, unchanged."""
    partitions = decoded[PARTITION]
    if decoded.height and partitions.min() == partitions.max():
        yield partitions[0], decoded
        return
    for (partition,), run in decoded.partition_by(PARTITION, as_dict=True, maintain_order=True).items():
        yield partition, run


def total_dropped(result: TaskResult) -> int:
    """Return the number of records dropped as late or without a key."""
    return sum(result.dropped.values())


@dataclass(frozen=True)
class BoundedRun:
    """One stage of a bounded run, with state in memory.

    The object is a callable for ``mapInArrow``. It takes packed rows sorted by bucket and sequence, runs one bucket
    after the other, and yields packed rows. A stream's rows are yielded as they come, a table's newest rows at the end
    of its bucket. Rows of several sources or of an earlier stage are sorted first, so they are all in memory at once.
    """

    worker_stage: WorkerStage

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run all buckets of a Spark task."""
        bucket: _Bucket | None = None
        for batch in batches:
            for row in from_batch(batch):
                if row.stage != self.worker_stage.stage.number:
                    yield from to_batches([row])
                    continue
                if bucket is not None and row.bucket != bucket.number:
                    yield from to_batches(bucket.finish())
                    bucket = None
                if bucket is None:
                    bucket = _Bucket(self.worker_stage, row.bucket)
                yield from to_batches(bucket.take(row))
        if bucket is not None:
            yield from to_batches(bucket.finish())


class _Bucket:
    """One bucket of a bounded run.

    The object has the bucket's task and the newest rows of its tables so far.
    """

    def __init__(self, worker_stage: WorkerStage, number: int) -> None:
        self.number = number
        self._worker_stage = worker_stage
        self._tasks: Tasks = LivingTask(worker_stage.task(number))
        if worker_stage.puts_aside:
            variables = {spec.name: MemoryVariables() for spec in worker_stage.stores}
            self._tasks = KeptTasks(
                partial(worker_stage.task, number), worker_stage.stores, variables, worker_stage.buckets
            )
        self._streams = [sink for sink in worker_stage.sinks if not sink.layout.table]
        self._tables: dict[str, list[pl.DataFrame]] = {
            sink.name: [] for sink in worker_stage.sinks if sink.layout.table
        }
        self._sinks = {sink.name: sink for sink in worker_stage.sinks}
        self._compacted_rows = 0
        self._dropped = 0
        self._records = 0
        self._is_first = True
        self._waiting: list[Packed] = []

    def take(self, run: Packed) -> Iterator[Packed]:
        self._records += run.records
        self._dropped += run.dropped
        if self._worker_stage.puts_aside or not self._worker_stage.stage.incremental:
            self._waiting.append(run)
            return iter(())
        is_first, self._is_first = self._is_first, False
        return of_piece(self._run([run]), is_first=is_first)

    def _run(self, runs: list[Packed]) -> Iterator[Packed]:
        outcome = self._worker_stage.run(self._tasks, runs, self.number)
        self._dropped += total_dropped(outcome.result)
        for name, parts in self._tables.items():
            parts.append(self._sinks[name].rows(outcome.result.outputs[name].batch.frame))
        if sum(part.height for parts in self._tables.values() for part in parts) > 2 * self._compacted_rows + 100_000:
            self._compact()
        yield from self._worker_stage.packed(outcome, self.number, self._streams)

    def finish(self) -> Iterator[Packed]:
        if self._waiting:
            yield from self._run(self._waiting)
        self._compact()
        tables = {name: parts[0] for name, parts in self._tables.items() if parts}
        for name, frame in tables.items():
            left = frame.filter(~pl.col(TOMBSTONE)) if TOMBSTONE in frame.columns else frame
            yield Packed(OUT, self.number, name, rows=left.height, payload=pack_frame(left))
        yield Packed(OUT, self.number, records=self._records, dropped=self._dropped)

    def _compact(self) -> None:
        for name, parts in self._tables.items():
            if parts:
                parts[:] = [newest_rows(pl.concat(parts), self._sinks[name].layout)]
        self._compacted_rows = sum(part.height for parts in self._tables.values() for part in parts)
