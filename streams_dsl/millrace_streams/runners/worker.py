"""What runs in a Spark worker: a bucket's records through the task, packed in and packed out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl
import pyarrow as pa

from millrace_streams.compiler import Plan
from millrace_streams.layout import Layout
from millrace_streams.runners.output import gone, newest_rows
from millrace_streams.runners.packing import OUTPUT, packed_row, unpack_run
from millrace_streams.steps import Operator
from millrace_streams.steps.batch import OFFSET, TOMBSTONE, Batch
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


@dataclass(frozen=True)
class Program:
    """The task of a plan as it is sent to workers."""

    topic: str
    head: str
    head_layout: Layout
    operators: Sequence[Operator]
    forks: Forks
    sinks: Sequence[Sink]

    @classmethod
    def of(cls, plan: Plan) -> Program:
        """Take from a plan what a worker needs."""
        sinks = tuple(Sink(sink.name, plan.sink_layout(sink), plan.deletes(sink)) for sink in plan.sinks)
        return cls(plan.source.topic, plan.head, plan.head_layout, plan.task, plan.forks, sinks)

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

    def run(self, task: Task, records: pl.DataFrame, bucket: int) -> TaskResult:
        """Run a bucket's records, in columns, through its task."""
        marks = root_marks(records[OFFSET].to_numpy(), self.steps)
        arrivals = {self.head: Flow(Batch.of_frame(self.head_layout, records.drop(OFFSET)), marks)}
        origin = lambda offset: Origin(self.topic, bucket, offset)  # noqa: E731
        return task.run(arrivals, origin, wall_clock_ms=time.time_ns() // 1_000_000)

    def pack(self, outputs: Mapping[str, pl.DataFrame]) -> Iterator[OutputRow]:
        """Pack what a task gave. Of a table's rows only the newest of each key goes out."""
        for sink in self.sinks:
            frame = sink.rows(outputs[sink.name])
            if frame.height:
                yield OutputRow(sink=sink.name, rows=frame.height, payload=pack_frame(frame))


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
    rows at the end of its bucket.
    """

    program: Program

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run all buckets of a Spark task."""
        bucket = _Bucket(self.program)
        current: int | None = None
        for batch in batches:
            for number, records, payload in _runs(batch):
                if current is not None and number != current:
                    yield from _arrow(bucket.finish())
                    bucket = _Bucket(self.program)
                current = bucket.number = number
                yield from _arrow(bucket.run(payload, records))
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

    def run(self, payload: bytes, records: int) -> Iterator[OutputRow]:
        result = self._program.run(self._task, unpack_run([(0, payload)]), self.number)
        outputs = frames_of(result)
        self._records += records
        self._dropped += total_dropped(result)
        for name, parts in self._tables.items():
            parts.append(self._sinks[name].rows(outputs[name]))
        if sum(part.height for parts in self._tables.values() for part in parts) > 2 * self._compacted_rows + 100_000:
            self._compact()
        streams = {name: frame.clear() if name in self._tables else frame for name, frame in outputs.items()}
        return self._program.pack(streams)

    def finish(self) -> Iterator[OutputRow]:
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
            for number, records, payload in _runs(batch):
                result = self.program.run(task, unpack_run([(0, payload)]), number)
                yield from _arrow(self.program.pack(frames_of(result)))
                yield from _arrow(iter([OutputRow(records=records)]))


def _arrow(rows: Iterator[OutputRow]) -> Iterator[pa.RecordBatch]:
    for row in rows:
        yield packed_row(OUTPUT, row.sink, row.rows, row.records, row.dropped, row.payload)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[int, int, bytes]]:
    columns = (batch.column(name) for name in ("bucket", "records", "payload"))
    for bucket, records, payload in zip(*columns, strict=True):
        yield bucket.as_py(), records.as_py(), payload.as_py()
