"""Test driver: a topology run in process, without Spark or broker.

It runs the same compiled plan and the same steps as the Spark runners. Each call pipes one batch: pipe records one by
one to see every intermediate result, or many at once as in a micro-batch. The test controls time: stream time comes
from the records, and ``advance_wall_clock`` moves the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from millrace.records import Headers
from millrace_streams.checkpoints.entries import StoreEntry
from millrace_streams.compiler import Plan, compile_topology
from millrace_streams.compiler.plan import SourceReader, is_output
from millrace_streams.errors import TopologyError
from millrace_streams.frames.codec import rows_of
from millrace_streams.frames.evaluation import polars_schema
from millrace_streams.graph import DeltaSinkNode, Node, RepartitionNode, SinkNode, TopicSinkNode, Topology
from millrace_streams.layout import TopicShape
from millrace_streams.processors import Record
from millrace_streams.runners.output import address, gone, newest_rows
from millrace_streams.runners.topic_rows import OpaqueRows
from millrace_streams.runners.topology_test_driver_stores import entries_of, frame_of, view_of_store
from millrace_streams.steps.batch import HEADERS, TIMESTAMP, TOMBSTONE, TOPIC, Batch
from millrace_streams.steps.flow import ROOT, Flow, Origin, interleave
from millrace_streams.steps.operator import AnyStore
from millrace_streams.steps.reader import Reader
from millrace_streams.steps.results import check_types
from millrace_streams.steps.task import Steps, Task, TaskResult, root_marks

PipedRows: TypeAlias = "Sequence[Mapping[str, Any]] | pl.DataFrame | pa.Table"


@dataclass(frozen=True, slots=True)
class TestRecord:
    """Record for the test driver (Kafka's ``TestRecord``).

    Key and value have the types that the topology's functions see. The time is in ms.
    """

    __test__ = False

    topic: str
    key: Any
    value: Any
    timestamp_ms: int
    headers: Headers = ()


class TopologyTestDriver:
    """Test driver of a topology (Kafka's ``TopologyTestDriver``), with one task per partition.

    ``topics`` has the shapes of topics whose schema the topology does not declare. Shapes of output topics are checked
    against the rows. ``wall_clock_ms`` is the initial wall-clock time, and ``application_id`` the id for processors.
    Raises ``TopologyError`` as the compiler does, and for a topology with repartitions if there are several partitions.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        topics: Mapping[str, TopicShape] | None = None,
        partitions: int = 1,
        wall_clock_ms: int = 0,
        application_id: str = "test",
    ) -> None:
        """Compile the topology and start with empty stores."""
        self._plan: Plan = compile_topology(topology, topics or {})
        if partitions > 1 and self._plan.repartitions:
            raise TopologyError(
                f"{self._plan.repartitions[0].node}: its records change partition: test it with partitions=1"
            )
        self._readers = [(each, Reader(each.source, each.layout, each.operators)) for each in self._plan.readers]
        self._steps = Steps.of(
            self._plan.task, self._plan.forks, self._plan.repartition_numbers, self._plan.subtopologies
        )
        self._tasks = [
            Task(self._steps, partition=number, application_id=application_id) for number in range(partitions)
        ]
        self._offsets: dict[tuple[str, int], int] = {}
        self._roots = 0
        self._wall_clock_ms = wall_clock_ms
        self._bytes = _topics_of_bytes(self._plan, topics or {})
        self._headers: dict[int, Headers] = {}
        self._outputs: dict[str, list[Flow]] = {}
        self._unread: dict[str, int] = {}
        self.dropped_records = 0
        # Processors are initialized and schedule their punctuations now.
        for number in range(partitions):
            self._run(number, {}, {})

    @property
    def plan(self) -> Plan:
        """The compiled plan."""
        return self._plan

    def pipe(
        self, topic: str, rows: PipedRows, *, timestamps_ms: Sequence[int] | None = None, partition: int = 0
    ) -> None:
        """Pipe records, in order, as one batch. Missing columns are null.

        Timestamps are ``timestamps_ms``, else the rows' ``__timestamp`` (ms), else 0. Raises ``TopologyError`` for an
        unknown topic, and ``UserFunctionError`` as the steps do.
        """
        sources = self._sources_of(topic)
        height = len(rows)
        batches = [_decoded(source, rows, timestamps_ms) for source, _ in sources]
        numbers = np.arange(self._roots, self._roots + height)
        origins = self._origins([(topic, ())] * height, partition)
        self._run(partition, self._read(sources, batches, numbers, origins, partition), origins)

    def pipe_record(self, topic: str, row: Mapping[str, Any], *, timestamp_ms: int, partition: int = 0) -> None:
        """Pipe one record as its own batch."""
        self.pipe(topic, [row], timestamps_ms=[timestamp_ms], partition=partition)

    def pipe_records(self, records: Sequence[TestRecord], *, partition: int = 0) -> None:
        """Pipe records of any topics, in order, as one batch. Raises as ``pipe`` does."""
        origins = self._origins([(record.topic, record.headers) for record in records], partition)
        first = min(origins, default=0)
        arrivals: dict[str, Flow] = {}
        for topic in dict.fromkeys(record.topic for record in records):
            sources = self._sources_of(topic)
            places = [place for place, record in enumerate(records) if record.topic == topic]
            batches = [_batch_of(source, [records[place] for place in places]) for source, _ in sources]
            numbers = np.asarray(places, dtype=np.int64) + first
            arrivals |= self._read(sources, batches, numbers, origins, partition)
        self._run(partition, arrivals, origins)

    def advance_wall_clock(self, milliseconds: int) -> None:
        """Advance the wall clock; each due punctuation is called at most once."""
        self._wall_clock_ms += milliseconds
        for number in range(len(self._tasks)):
            self._run(number, {}, {})

    def read(self, name: str) -> list[dict[str, Any]]:
        """Return the new output since the last ``read`` of the sink that writes this table or topic.

        Each row is a dict of its columns and ``__timestamp``; a typed row without a value has ``__tombstone``. A row
        for a topic has ``__headers`` if its input record has headers.
        """
        is_table = name in self._plan.topology.tables
        return [
            row if is_table else self._with_headers(row, root)
            for flow in self._next(name)
            for row, root in zip(rows_of(flow.batch.frame), flow.marks[:, ROOT].tolist(), strict=True)
        ]

    def read_records(self, name: str) -> list[Record]:
        """Return the new output as records: keys and values as in the topology's functions, windowed keys as
        ``Windowed``.
        """
        return [
            Record(key, value, time_ms)
            for flow in self._next(name)
            for key, value, time_ms in zip(flow.batch.keys, flow.batch.values, flow.batch.times, strict=True)
        ]

    def table(self, name: str) -> pl.DataFrame:
        """Return the content of a Delta table now: all appended records, or the newest row of each key and window."""
        layout = self._plan.layouts[self._sink(name).name]
        types = polars_schema(layout.schema)
        flows = self._outputs.get(name, [])
        frames = [pl.DataFrame(schema={**types, TIMESTAMP: pl.Int64}), *(flow.batch.frame for flow in flows)]
        rows = pl.concat(frames, how="diagonal")
        if layout.table:
            rows = newest_rows(rows, layout).filter(~gone(rows.columns, layout))
        return rows.select(layout.names)

    def store(self, name: str, *, partition: int = 0) -> pl.DataFrame:
        """Return the rows of a state store as columns."""
        return frame_of(self._store(name, partition))

    def entries(self, name: str, *, partition: int = 0) -> list[StoreEntry]:
        """Return the rows of a state store as keys and values, in key order."""
        return entries_of(self._store(name, partition), self._plan)

    def view(self, name: str, *, partition: int = 0) -> Any:
        """Return a state store as a processor sees it: ``get``, ``fetch``, ``all`` ..."""
        return view_of_store(self._store(name, partition))

    def _store(self, name: str, partition: int) -> AnyStore:
        stores = self._tasks[partition].stores
        if name not in stores:
            raise TopologyError(f"no store is named {name}; the stores are {', '.join(stores) or 'none'}")
        return stores[name]

    def _sources_of(self, topic: str) -> list[tuple[SourceReader, Reader]]:
        sources = [(each, reader) for each, reader in self._readers if each.source.topic == topic]
        if not sources:
            known = ", ".join(dict.fromkeys(each.source.topic for each, _ in self._readers))
            raise TopologyError(f"the topology reads {known}, not {topic}")
        return sources

    def _origins(self, records: Iterable[tuple[str, Headers]], partition: int) -> dict[int, Origin]:
        """Number the input records, and store the position and headers of each."""
        origins = {}
        for topic, headers in records:
            offset = self._offsets.get((topic, partition), 0)
            self._offsets[topic, partition] = offset + 1
            origins[self._roots] = Origin(topic, partition, offset, headers)
            if headers:
                self._headers[self._roots] = headers
            self._roots += 1
        return origins

    def _read(
        self,
        sources: list[tuple[SourceReader, Reader]],
        batches: list[Batch],
        numbers: np.ndarray[Any, np.dtype[np.int64]],
        origins: Mapping[int, Origin],
        partition: int,
    ) -> dict[str, Flow]:
        """Run the readers of one topic's sources."""
        offsets = np.asarray([origins[number].offset for number in numbers.tolist()], dtype=np.int64)
        arrivals = {}
        for source_number, ((source, reader), batch) in enumerate(zip(sources, batches, strict=True)):
            read = reader.run_batch(batch, offsets, partition)
            self.dropped_records += read.dropped
            arrivals[source.head] = Flow(
                read.batch, root_marks(numbers[read.rows], self._steps, source_number=source_number)
            )
        return arrivals

    def _run(self, partition: int, arrivals: Mapping[str, Flow], origins: Mapping[int, Origin]) -> None:
        result = self._tasks[partition].run(arrivals, origins.__getitem__, wall_clock_ms=self._wall_clock_ms)
        for name, writer in self._bytes.items():
            writer.written(result.outputs[name], origins.__getitem__)
        self._collect(result)
        self.dropped_records += sum(result.dropped.values())

    def _collect(self, result: TaskResult) -> None:
        """Store the output by table or topic; several sinks of a topic are merged in record order."""
        by_name: dict[str, list[Flow]] = {}
        for node_name, flow in result.outputs.items():
            for name, part in _by_topic(self._plan.topology.node(node_name), flow):
                by_name.setdefault(name, []).append(part)
        for name, flows in by_name.items():
            _, sides, rows = interleave(flows)
            for side, turns in groupby(zip(sides, rows, strict=True), key=lambda turn: turn[0]):
                taken = [row for _, row in turns]
                flow = Flow(flows[side].batch.take(taken), flows[side].marks[taken])
                self._outputs.setdefault(name, []).append(flow)

    def _next(self, name: str) -> list[Flow]:
        if name not in self._outputs:
            self._sink(name)
        flows = self._outputs.get(name, [])
        unread = flows[self._unread.get(name, 0) :]
        self._unread[name] = len(flows)
        return unread

    def _with_headers(self, row: dict[str, Any], root: int) -> dict[str, Any]:
        headers = self._headers.get(root, ())
        return {**row, HEADERS: [{"key": name, "value": value} for name, value in headers]} if headers else row

    def _sink(self, name: str) -> SinkNode | RepartitionNode:
        for node in self._plan.topology.nodes:
            if is_output(node) and address(node) == name:
                return node
        for node in self._plan.topology.nodes:
            if isinstance(node, TopicSinkNode) and node.extractor is not None:
                return node
        raise TopologyError(f"no sink writes to {name}")


def _topics_of_bytes(plan: Plan, topics: Mapping[str, TopicShape]) -> dict[str, OpaqueRows]:
    """Return the writers of known topics of bytes by node; they refuse rows that cannot be written, as on Spark."""
    return {
        node.name: OpaqueRows.of(node, plan.layouts[node.name])
        for node in plan.outputs
        if not isinstance(node, DeltaSinkNode)
        and (node.produced or not node.topic or (node.topic in topics and topics[node.topic].scalar))
    }


def _by_topic(node: Node, flow: Flow) -> Iterator[tuple[str, Flow]]:
    """Yield the rows of a sink by their table or topic."""
    if TOPIC not in flow.batch.frame.columns:
        yield address(node), flow
        return
    topics = flow.batch.frame[TOPIC].to_list()
    batch = Batch.of_frame(flow.batch.layout, flow.batch.frame.drop(TOPIC))
    for name in dict.fromkeys(topics):
        rows = [row for row, topic in enumerate(topics) if topic == name]
        yield name, Flow(batch.take(rows), flow.marks[rows])


def _batch_of(source: SourceReader, records: Sequence[TestRecord]) -> Batch:
    """Return records as the source reads them; missing columns are null."""
    layout = source.layout
    values = [record.value for record in records]
    if not layout.scalar:
        nothing = dict.fromkeys(layout.names)
        values = [None if value is None else {**nothing, **value} for value in values]
    keys, times = [record.key for record in records], [record.timestamp_ms for record in records]
    batch = Batch.of_lists(layout, keys, values, times)
    check_types(f"{source.source.name} (records of {source.source.topic})", batch, "the value")
    return batch.canonical()


def _decoded(source: SourceReader, rows: PipedRows, timestamps_ms: Sequence[int] | None) -> Batch:
    types = polars_schema(source.layout.schema)
    if isinstance(rows, pa.Table):
        frame = pl.DataFrame(rows)
    elif isinstance(rows, pl.DataFrame):
        frame = rows
    else:
        overrides: dict[str, Any] = {**types, TIMESTAMP: pl.Int64}
        frame = pl.DataFrame(list(rows), schema_overrides=overrides, infer_schema_length=None)
    missing = [pl.lit(None, data_type).alias(name) for name, data_type in types.items() if name not in frame.columns]
    if timestamps_ms is not None:
        frame = frame.with_columns(pl.Series(TIMESTAMP, list(timestamps_ms), dtype=pl.Int64))
    elif TIMESTAMP not in frame.columns:
        frame = frame.with_columns(pl.lit(0, pl.Int64).alias(TIMESTAMP))
    reserved = [name for name in (TIMESTAMP, TOMBSTONE) if name in frame.columns]
    decoded = frame.with_columns(*missing).select(*types, *reserved)
    wanted: dict[Any, Any] = {**types, TIMESTAMP: pl.Int64}
    return Batch.of_frame(source.layout, decoded.cast(wanted))
