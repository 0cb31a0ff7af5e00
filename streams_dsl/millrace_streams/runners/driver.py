"""The test driver: a topology run in process, without Spark or broker, in milliseconds.

It runs the same compiled plan and the same steps as the Spark runners. What is piped in one call is one batch: pipe
records one by one to see every intermediate result, or many at once as a micro-batch would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

from millrace_streams.compiler import Plan, compile_topology
from millrace_streams.errors import TopologyError
from millrace_streams.graph import DeltaSinkNode, SinkNode, Topology
from millrace_streams.layout import WINDOW_START, TopicShape
from millrace_streams.steps.evaluation import polars_schema
from millrace_streams.steps.reader import Reader
from millrace_streams.steps.records import OFFSET, TIMESTAMP, empty_records
from millrace_streams.steps.task import StatefulSteps, Task

Rows: TypeAlias = "Sequence[Mapping[str, Any]] | pl.DataFrame | pa.Table"


class TopologyTestDriver:
    """Runs a topology on records piped in, one task per partition, and keeps what comes out.

    ``topics`` gives the shapes of topics whose schema the topology does not declare. Raises ``TopologyError`` as the
    compiler does, and for a topology whose records would have to move between more than one partition.
    """

    def __init__(
        self, topology: Topology, *, topics: Mapping[str, TopicShape] | None = None, partitions: int = 1
    ) -> None:
        """Compile the topology and start with empty stores."""
        self._plan: Plan = compile_topology(topology, topics or {})
        if partitions > 1 and self._plan.repartitions:
            raise TopologyError(
                f"{self._plan.repartitions[0].node}: its records change partition: test it with partitions=1"
            )
        self._reader = Reader(self._plan.source, self._plan.columns, self._plan.reader)
        steps = StatefulSteps.of(self._plan.task)
        self._tasks = [Task(self._plan.head, self._plan.task, steps) for _ in range(partitions)]
        self._offsets = [0] * partitions
        self._outputs: dict[str, list[pl.DataFrame]] = {sink.name: [] for sink in self._plan.sinks}
        self._unread: dict[str, int] = {sink.name: 0 for sink in self._plan.sinks}
        self.dropped_records = 0

    @property
    def plan(self) -> Plan:
        """The compiled plan."""
        return self._plan

    def pipe(self, topic: str, rows: Rows, *, timestamps_ms: Sequence[int] | None = None, partition: int = 0) -> None:
        """Pipe records, in order, as one batch. Missing columns are null.

        Timestamps are those given, else the rows' ``__timestamp`` (ms), else 0. Raises ``TopologyError`` for an unknown
        topic, ``UserFunctionError`` as the steps do.
        """
        if topic != self._plan.source.topic:
            raise TopologyError(f"the topology reads {self._plan.source.topic}, not {topic}")
        decoded = self._decode(rows, timestamps_ms, self._offsets[partition])
        self._offsets[partition] += decoded.height
        result = self._tasks[partition].run(self._reader.run(decoded, partition))
        for name, output in result.outputs.items():
            self._outputs[name].append(output)
        self.dropped_records += sum(result.dropped.values())

    def pipe_record(self, topic: str, row: Mapping[str, Any], *, timestamp_ms: int, partition: int = 0) -> None:
        """Pipe one record as a batch of its own."""
        self.pipe(topic, [row], timestamps_ms=[timestamp_ms], partition=partition)

    def read(self, name: str) -> list[dict[str, Any]]:
        """What came out, since the last ``read``, at the sink that writes to this table or topic.

        Each row is a dict of its columns and ``__timestamp``.
        """
        sink = self._sink(name)
        unread = self._outputs[sink.name][self._unread[sink.name] :]
        self._unread[sink.name] = len(self._outputs[sink.name])
        return [row for output in unread for row in output.drop(OFFSET).to_dicts()]

    def table(self, name: str) -> pl.DataFrame:
        """What a Delta table would hold now: all appended records, or the newest row of each key and window."""
        sink = self._sink(name)
        layout = self._plan.sink_layout(sink)
        outputs = [empty_records(polars_schema(layout.schema)), *self._outputs[sink.name]]
        rows = pl.concat(outputs).select(layout.names)
        if not layout.table:
            return rows
        return rows.unique(
            [*layout.key, *([WINDOW_START] if layout.windowed else [])], keep="last", maintain_order=True
        )

    def store(self, name: str, *, partition: int = 0) -> pl.DataFrame:
        """The rows that a state store holds."""
        stores = self._tasks[partition].stores
        if name not in stores:
            raise TopologyError(f"no store is named {name}; the stores are {', '.join(stores) or 'none'}")
        return stores[name].rows()

    def _sink(self, name: str) -> SinkNode:
        for sink in self._plan.sinks:
            if name == (sink.table if isinstance(sink, DeltaSinkNode) else sink.topic):
                return sink
        raise TopologyError(f"no sink writes to {name}")

    def _decode(self, rows: Rows, timestamps_ms: Sequence[int] | None, first_offset: int) -> pl.DataFrame:
        types = polars_schema(self._plan.layouts[self._plan.source.name].schema)
        if isinstance(rows, pa.Table):
            frame = pl.DataFrame(rows)
        elif isinstance(rows, pl.DataFrame):
            frame = rows
        else:
            frame = pl.DataFrame(list(rows), schema_overrides={**types, TIMESTAMP: pl.Int64}, infer_schema_length=None)
        missing = [
            pl.lit(None, data_type).alias(name) for name, data_type in types.items() if name not in frame.columns
        ]
        if timestamps_ms is not None:
            times = pl.Series(TIMESTAMP, list(timestamps_ms), dtype=pl.Int64)
            frame = frame.with_columns(times)
        elif TIMESTAMP not in frame.columns:
            frame = frame.with_columns(pl.lit(0, pl.Int64).alias(TIMESTAMP))
        offsets = pl.int_range(first_offset, first_offset + pl.len(), dtype=pl.Int64).alias(OFFSET)
        return (
            frame.with_columns(*missing)
            .with_columns(offsets)
            .select(*types, TIMESTAMP, OFFSET)
            .cast(empty_records(types).schema)
        )
