"""What runs in a Spark worker: a bucket's records through the task, packed in and packed out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from millrace_streams.compiler import Plan
from millrace_streams.layout import Layout
from millrace_streams.runners.output import gone, newest_rows
from millrace_streams.runners.packing import OUTPUT, packed_row, unpack_run
from millrace_streams.steps import Operator
from millrace_streams.steps.batch import OFFSET, SEQUENCE, TIMESTAMP, TOMBSTONE, Batch, Rows
from millrace_streams.steps.chunks import pack_frame
from millrace_streams.steps.flow import Flow, Origin
from millrace_streams.steps.operator import AnyStore, AnyStoreSpec
from millrace_streams.steps.task import Forks, Steps, Task, TaskResult, root_marks


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRow:
    """A packed output; ``sink`` is empty in a row that carries the numbers of records read and dropped."""

    sink: str = ""
    rows: int = 0
    records: int = 0
    dropped: int = 0
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Sink:
    """Where results go: the node, the layout of its rows, and whether among them are such as delete."""

    name: str
    layout: Layout
    deletes: bool

    def rows(self, frame: pl.DataFrame) -> pl.DataFrame:
        """What goes out of a task's result: of a table the newest row of each key, with the mark of deletion."""
        marked = frame.with_columns(gone(frame.columns, self.layout).alias(TOMBSTONE)) if self.deletes else frame
        return newest_rows(marked.select(*self.layout.names, *([TOMBSTONE] if self.deletes else [])), self.layout)


@dataclass(frozen=True, slots=True)
class Head:
    """Where records of a source enter the task: the node, the layout of what it gives, and the topic."""

    node: str
    layout: Layout
    topic: str


@dataclass(frozen=True)
class Program:
    """The task of a plan as it is sent to workers."""

    heads: Sequence[Head]
    operators: Sequence[Operator]
    forks: Forks
    sinks: Sequence[Sink]

    @classmethod
    def of(cls, plan: Plan) -> Program:
        """Take from a plan what a worker needs."""
        sinks = tuple(Sink(sink.name, plan.sink_layout(sink), plan.deletes(sink)) for sink in plan.sinks)
        heads = tuple(Head(reader.head, plan.layouts[reader.head], reader.source.topic) for reader in plan.readers)
        return cls(heads, plan.task, plan.forks, sinks)

    @cached_property
    def steps(self) -> Steps:
        """The steps, made once per worker."""
        return Steps.of(self.operators, self.forks)

    @property
    def stores(self) -> list[AnyStoreSpec]:
        """The stores to be kept."""
        return self.steps.stores()

    def task(self, stores: Mapping[str, AnyStore] | None = None) -> Task:
        """A task for one bucket, with its stores or with empty ones."""
        return Task(self.steps, dict(stores or {}))

    def run(self, task: Task, records: Mapping[int, pl.DataFrame], bucket: int) -> TaskResult:
        """Run a bucket's records, in columns by source, through its task.

        Those of several sources are taken in the order of ``__sequence`` where it is there, else by their times, as
        Kafka Streams does: always the record that comes first in its partition and has the earliest time.
        """
        roots, places = _interleaved(records)
        arrivals = {}
        for source, frame in records.items():
            head = self.heads[source]
            batch = Batch.of_frame(head.layout, frame.drop(OFFSET, SEQUENCE, strict=False))
            arrivals[head.node] = Flow(batch, root_marks(roots[source], self.steps))

        def origin(root: int) -> Origin:
            source, row = places[root]
            return Origin(self.heads[source].topic, bucket, records[source][OFFSET][row])

        return task.run(arrivals, origin, wall_clock_ms=time.time_ns() // 1_000_000)

    def pack(self, outputs: Mapping[str, pl.DataFrame]) -> Iterator[OutputRow]:
        """Pack what a task gave. Of a table's rows only the newest of each key goes out."""
        for sink in self.sinks:
            frame = sink.rows(outputs[sink.name])
            if frame.height:
                yield OutputRow(sink=sink.name, rows=frame.height, payload=pack_frame(frame))


def _interleaved(records: Mapping[int, pl.DataFrame]) -> tuple[dict[int, Rows], Sequence[tuple[int, int]]]:
    """Number the records of several sources in the order in which they are taken; and where each number is from."""
    orders = [
        frame[SEQUENCE] if SEQUENCE in frame.columns else frame[TIMESTAMP].cum_max() for frame in records.values()
    ]
    whole = np.concatenate([order.to_numpy() for order in orders])
    sources = np.concatenate([np.full(frame.height, source) for source, frame in records.items()])
    rows = np.concatenate([np.arange(frame.height) for frame in records.values()])
    taken = np.lexsort([rows, sources, whole])
    numbers = np.empty(len(taken), dtype=np.int64)
    numbers[taken] = np.arange(len(taken))
    places = list(zip(sources[taken].tolist(), rows[taken].tolist(), strict=True))
    return {source: numbers[sources == source] for source in records}, places


def frames_of(result: TaskResult) -> dict[str, pl.DataFrame]:
    """What a task gave, in columns, by sink."""
    return {name: flow.batch.frame for name, flow in result.outputs.items()}


def total_dropped(result: TaskResult) -> int:
    """Records that a batch lost because they were late or had no key."""
    return sum(result.dropped.values())


@dataclass(frozen=True)
class BoundedRun:
    """Runs whole buckets, one after the other, with their state in memory; a callable for ``mapInArrow``.

    Takes packed rows sorted by bucket and sequence, gives packed outputs: a stream's as they come, a table's newest
    rows at the end of its bucket. Records of several sources are put in order first, and so are in memory all at once.
    """

    program: Program

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run all buckets of a Spark task."""
        bucket = _Bucket(self.program)
        current: int | None = None
        for batch in batches:
            for run in _runs(batch):
                if current is not None and run.bucket != current:
                    yield from _arrow(bucket.finish())
                    bucket = _Bucket(self.program)
                current = bucket.number = run.bucket
                yield from _arrow(bucket.take(run))
        yield from _arrow(bucket.finish())


class _Bucket:
    """One bucket of a bounded run: its task, and the newest rows of its tables so far."""

    def __init__(self, program: Program) -> None:
        self.number = 0
        self._program = program
        self._task = program.task()
        self._tables: dict[str, list[pl.DataFrame]] = {sink.name: [] for sink in program.sinks if sink.layout.table}
        self._sinks = {sink.name: sink for sink in program.sinks}
        self._compacted_rows = 0
        self._dropped = 0
        self._records = 0
        self._waiting: list[Run] = []

    def take(self, run: Run) -> Iterator[OutputRow]:
        self._records += run.records
        if len(self._program.heads) > 1:
            self._waiting.append(run)
            return iter(())
        return self._run([run])

    def _run(self, runs: list[Run]) -> Iterator[OutputRow]:
        result = self._program.run(self._task, records_of(runs), self.number)
        outputs = frames_of(result)
        self._dropped += total_dropped(result)
        for name, parts in self._tables.items():
            parts.append(self._sinks[name].rows(outputs[name]))
        if sum(part.height for parts in self._tables.values() for part in parts) > 2 * self._compacted_rows + 100_000:
            self._compact()
        streams = {name: frame.clear() if name in self._tables else frame for name, frame in outputs.items()}
        return self._program.pack(streams)

    def finish(self) -> Iterator[OutputRow]:
        if self._waiting:
            yield from self._run(self._waiting)
        self._compact()
        tables = {name: parts[0] for name, parts in self._tables.items() if parts}
        for name, frame in tables.items():
            left = frame.filter(~pl.col(TOMBSTONE)) if TOMBSTONE in frame.columns else frame
            payload = pack_frame(left.select(self._sinks[name].layout.names))
            yield OutputRow(sink=name, rows=left.height, payload=payload)
        yield OutputRow(records=self._records, dropped=self._dropped)

    def _compact(self) -> None:
        for name, parts in self._tables.items():
            if parts:
                parts[:] = [newest_rows(pl.concat(parts), self._sinks[name].layout)]
        self._compacted_rows = sum(part.height for parts in self._tables.values() for part in parts)


@dataclass(frozen=True)
class StatelessRun:
    """Runs a task that keeps no state on packed rows, wherever they are; a callable for ``mapInArrow``."""

    program: Program

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run a Spark task's rows."""
        task = self.program.task()
        for batch in batches:
            for run in _runs(batch):
                result = self.program.run(task, records_of([run]), run.bucket)
                yield from _arrow(self.program.pack(frames_of(result)))
                yield from _arrow(iter([OutputRow(records=run.records)]))


def _arrow(rows: Iterator[OutputRow]) -> Iterator[pa.RecordBatch]:
    for row in rows:
        yield packed_row(OUTPUT, row.sink, row.rows, row.records, row.dropped, row.payload)


class Run(NamedTuple):
    """A packed row: records of one source that were read together."""

    bucket: int
    source: int
    sequence: int
    records: int
    payload: bytes


def records_of(runs: Iterable[Run]) -> dict[int, pl.DataFrame]:
    """The records of runs by source, in order."""
    by_source: dict[int, list[tuple[int, bytes]]] = {}
    for run in runs:
        by_source.setdefault(run.source, []).append((run.sequence, run.payload))
    return {source: unpack_run(payloads) for source, payloads in sorted(by_source.items())}


def _runs(batch: pa.RecordBatch) -> Iterator[Run]:
    columns = (batch.column(name) for name in Run._fields)
    for cells in zip(*columns, strict=True):
        yield Run(*(cell.as_py() for cell in cells))
