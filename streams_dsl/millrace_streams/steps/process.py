"""Processor step: records one by one, with stores and punctuations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.records import Headers
from millrace_streams.errors import TopologyError
from millrace_streams.frames.cells import lookup_conversion
from millrace_streams.graph import ProcessNode
from millrace_streams.layout import KEY, VALUE, WINDOW_COLUMNS, WINDOW_TYPE, Layout
from millrace_streams.processors import (
    FIRST_TASK,
    Milliseconds,
    PunctuationType,
    Record,
    RecordMetadata,
    StoreBuilder,
    TaskId,
    check_timestamp,
)
from millrace_streams.serdes import STRING, RowSerde
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.flow import FIXED, LAST, RELEASED, Emitted, Inputs, Marks, Origin, Output
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, typed
from millrace_streams.steps.process_stores import view_of
from millrace_streams.steps.process_tables import TableReads, TableRows, TableVersions
from millrace_streams.steps.punctuations import Punctuation, PunctuationQueue
from millrace_streams.stores import KeyValueStore, ObjectStore, StoreSpec, VersionedStore
from millrace_streams.windows import Duration, milliseconds

_KINDS: Final[tuple[PunctuationType, ...]] = ("stream_time", "wall_clock_time")
_NEVER: Final = 2**63 - 1
_SCHEDULE: Final = Layout(schema=pa.schema([STRING.field(KEY)]), key=(KEY,), bucket_columns=None)


@dataclass(slots=True)
class Context:
    """``ProcessorContext`` of one processor in one task."""

    node: ProcessNode
    stores: dict[str, ObjectStore]
    tables: dict[str, TableReads] = field(default_factory=dict)
    out: Emitted = field(default_factory=Emitted)
    punctuations: list[Punctuation] = field(default_factory=list)
    queues: dict[PunctuationType, PunctuationQueue] = field(default_factory=lambda: _queues())
    stream_time_ms: int = -1
    wall_clock_ms: int = 0
    cause: int = 0
    record: Record | None = None
    origin: Callable[[int], Origin] | None = None
    task_id: TaskId = FIRST_TASK
    application_id: str = ""
    children: list[str | None] = field(default_factory=list)
    initializes: bool = False

    @property
    def current_stream_time_ms(self) -> Milliseconds:
        """Stream time."""
        return Milliseconds(self.stream_time_ms)

    @property
    def current_system_time_ms(self) -> Milliseconds:
        """Wall-clock time."""
        return Milliseconds(self.wall_clock_ms)

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Position of the current record."""
        if self.record is None or self.origin is None:
            return None
        topic, partition, offset, _ = self.origin(self.cause)
        return RecordMetadata(topic, partition, offset)

    @property
    def headers(self) -> Headers:
        """Headers of the current record."""
        if self.record is None or self.origin is None:
            return ()
        return self.origin(self.cause).headers

    def begin(self, inputs: Inputs) -> None:
        """Start a batch."""
        self.out, self.children = Emitted(), []
        self.wall_clock_ms, self.origin = inputs.wall_clock_ms, inputs.origin_of
        self.task_id, self.application_id = inputs.task, inputs.application_id

    def forward(
        self, key: Any, value: Any = None, timestamp: int | None = None, *, child_name: str | None = None
    ) -> None:
        """Forward a record to all children or to one."""
        if isinstance(key, Record):
            key, value, timestamp = key.key, key.value, key.timestamp
        if self.node.fixed_key and (self.record is None or key != self.record.key):
            raise TopologyError(f"{self.node.name}: process_values keeps the key: use forward_value")
        self._forward(key, value, timestamp, child_name)

    def forward_value(self, value: Any, timestamp: int | None = None, *, child_name: str | None = None) -> None:
        """Forward a value to the children, under the key of the current record."""
        if self.record is None:
            raise TopologyError(
                f"{self.node.name}: no record is being processed, so a forwarded value would have no key: use forward"
            )
        self._forward(self.record.key, value, timestamp, child_name)

    def _forward(self, key: Any, value: Any, timestamp: int | None, child_name: str | None) -> None:
        if self.initializes:
            raise TopologyError(
                f"{self.node.name}: init cannot forward, because on Spark it runs for each micro-batch: forward in "
                "process, or in a punctuation"
            )
        if child_name is not None and child_name not in self.node.children:
            known = ", ".join(self.node.children) or "none"
            raise TopologyError(
                f"{self.node.name}: no child is named {child_name} (children: {known}): forward to one of these, or "
                "name the node with name=..."
            )
        if timestamp is None:
            timestamp = self.record.timestamp if self.record is not None else max(self.stream_time_ms, 0)
        check_timestamp(timestamp)
        self.out.add(self.cause, key, value, timestamp)
        self.children.append(child_name)

    def roll(self, changes: Batch, row: int, side: int) -> None:
        """Apply a change of a table that the processor reads; ``side`` is its input."""
        view = self.tables[self.node.tables[side - 1]]
        view.roll(changes.keys[row], changes.values[row], changes.times[row])

    def commit(self) -> None:
        """Do nothing, because a micro-batch is committed as a whole."""

    def get_state_store(self, name: str) -> Any:
        """Return a view of a connected store."""
        return self.store(name)

    def store(self, name: str) -> Any:
        """Return a view of a connected store."""
        if name in self.tables:
            return self.tables[name]
        if name not in self.stores:
            raise TopologyError(
                f"{self.node.name}: the store {name} is not connected to it (connected: "
                f"{', '.join((*self.stores, *self.tables)) or 'none'}): name it in stores=[...]"
            )
        return view_of(self.stores[name])

    def schedule(self, interval_ms: Duration, kind: PunctuationType, callback: Callable[[int], None]) -> Punctuation:
        """Schedule a callback at every multiple of an interval."""
        interval_ms = milliseconds(interval_ms)
        if kind not in _KINDS or interval_ms <= 0:
            raise TopologyError(
                f"{self.node.name}: schedule every {interval_ms} ms by {kind}: the interval must be positive, the kind "
                f"one of {', '.join(_KINDS)}"
            )
        first_ms = 0 if kind == "stream_time" else self.wall_clock_ms + interval_ms
        punctuation = Punctuation(interval_ms, kind, callback, first_ms)
        self.punctuations.append(punctuation)
        self.queues[kind].add(punctuation)
        return punctuation

    def punctuate(self, kind: PunctuationType, now_ms: int) -> None:
        """Call the due punctuations."""
        self.queues[kind].punctuate(now_ms)

    def keep(self, numbers: dict[str, int]) -> None:
        """Save stream time, and the next time of each punctuation with its place in the queue."""
        numbers["stream_time"] = self.stream_time_ms
        turns = {each: turn for queue in self.queues.values() for each, turn in queue.places().items()}
        for place, punctuation in enumerate(self.punctuations):
            numbers[f"due_{place}"] = _NEVER if punctuation.cancelled else punctuation.next_ms
            numbers[f"turn_{place}"] = turns.get(id(punctuation), len(turns))
            numbers.pop(f"cancelled_{place}", None)
            if punctuation.cancelled and id(punctuation) in turns:
                numbers[f"cancelled_{place}"] = punctuation.next_ms

    def resume(self, numbers: dict[str, int]) -> None:
        """Restore the state of an earlier task; punctuations are identified by their order in ``init``.

        A cancelled punctuation returns to its place in the queue, where it decides the order of others. A checkpoint of
        version 0.1.0 does not have this place, and then the punctuation stays away.
        """
        self.stream_time_ms = numbers.get("stream_time", -1)
        self.queues = _queues()
        # Punctuations that are added in the order of a heap are a heap of that order again.
        for place in sorted(range(len(self.punctuations)), key=lambda place: numbers.get(f"turn_{place}", place)):
            punctuation = self.punctuations[place]
            punctuation.next_ms = numbers.get(f"due_{place}", punctuation.next_ms)
            if punctuation.next_ms == _NEVER:
                punctuation.cancelled = True
                punctuation.next_ms = numbers.get(f"cancelled_{place}", _NEVER)
            if punctuation.next_ms != _NEVER:
                self.queues[punctuation.kind].add(punctuation)


@dataclass(frozen=True)
class ProcessStep:
    """Step of a ``ProcessNode``.

    The task's stream time is that of all input records, whether or not they reach the processor. A record advances it
    before it is processed, and punctuations are called afterwards.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The connected stores, and one for the schedule."""
        schedule = StoreSpec(name=f"{self._node.name}-punctuations", kind="key_value", layout=_SCHEDULE)
        return (*(_spec(builder) for builder in self._node.connected), schedule)

    def run(self, inputs: Inputs, state: State) -> Output:
        """Process the records in order, and call punctuations."""
        node, batch, height = self._node, inputs.batches[0], len(inputs.rows)
        with inputs.blaming(node.name, "the processor's beginning") as place:
            place.turn = height
            context, processor = self._running(inputs, state)
        context.begin(inputs)
        ticks = inputs.ticks
        assert ticks is not None
        self._announce(batch, context)
        # Stream-time punctuations come after everything that a record caused.
        after = ticks.marks.copy()
        after[:, FIXED:] = LAST
        punctuations = height + len(after)
        sides, rows = inputs.sides.tolist(), inputs.rows.tolist()
        events = _events(ticks.marks, inputs.marks, after)
        with inputs.blaming(node.name, type(processor).__name__) as place:
            context.cause = place.turn = punctuations
            context.punctuate("wall_clock_time", inputs.wall_clock_ms)
            for event in events:
                if event >= punctuations:
                    context.stream_time_ms = max(context.stream_time_ms, ticks.times[event - punctuations])
                    continue
                context.cause = place.turn = event
                if event >= height:
                    context.punctuate("stream_time", context.stream_time_ms)
                elif sides[event]:
                    context.roll(inputs.batches[sides[event]], rows[event], sides[event])
                else:
                    row = rows[event]
                    context.record = Record(batch.keys[row], batch.values[row], batch.times[row])
                    processor.process(context.record)
                    context.record = None
        context.keep(self._numbers(state))
        # Rows from wall-clock punctuations come before all others.
        wall_clock = np.full((1, after.shape[1]), -1, dtype=np.int64)
        return self._output(inputs, node, context, np.concatenate([inputs.marks, after, wall_clock]))

    def _announce(self, batch: Batch, context: Context) -> None:
        """Prefetch the keys of the records, because most processors ask their stores for them."""
        types = _key_types(self.operator.given)
        for store in context.stores.values():
            if isinstance(store, KeyValueStore | VersionedStore) and _key_types(store.spec.layout) == types:
                store.want(key for key in batch.keys if key is not None)

    def _running(self, inputs: Inputs, state: State) -> tuple[Context, Any]:
        """Return the task's processor, created and initialized at its first batch."""
        node = self._node
        if node.name in state.running:
            context = state.running[node.name][0]
        else:
            stores = {name: store for name in node.stores if isinstance(store := state.stores[name], ObjectStore)}
            context = Context(node, stores, self._tables(state))
        records = {key for key in inputs.batches[0].keys if key is not None}
        layout, *tables = map(_key_types, self.operator.inputs)
        for changes, table, types in zip(inputs.batches[1:], context.tables.values(), tables, strict=True):
            # Most processors ask a table for the keys of their records.
            table.begin([*changes.keys, *(records if types == layout else ())])
        if node.name not in state.running:
            context.begin(inputs)
            processor = node.supplier()
            if hasattr(processor, "init"):
                context.initializes = True
                processor.init(context)
                context.initializes = False
            context.resume(self._numbers(state))
            state.running[node.name] = (context, processor)
        running: tuple[Context, Any] = state.running[node.name]
        return running

    def _tables(self, state: State) -> dict[str, TableReads]:
        """Return the views of the tables that the processor reads, by the names of their stores."""
        views: dict[str, TableReads] = {}
        operator = self.operator
        for name, store, layout in zip(self._node.tables, operator.reads[1:], operator.inputs[1:], strict=True):
            assert store is not None
            kept, convert = state.stores[store], lookup_conversion(layout)
            if isinstance(kept, VersionedStore):
                views[name] = TableVersions(name, convert, kept)
            else:
                views[name] = TableRows(name, store, layout, convert, state)
        return views

    def _numbers(self, state: State) -> dict[str, int]:
        """Return the numbers that hold stream time and the schedule."""
        store = state.stores[f"{self._node.name}-punctuations"]
        assert isinstance(store, ObjectStore)
        return store.numbers

    def _output(self, inputs: Inputs, node: ProcessNode, context: Context, marks: Marks) -> Output:
        output = context.out.output(self.operator.result)
        children = context.children if any(context.children) else None
        causes = np.asarray(output.causes, dtype=np.int64)
        rest, kept = inputs.release(output.batch, marks[causes], np.flatnonzero(causes >= len(inputs.rows)))
        if children is not None:
            children = [children[row] for row in kept.tolist()]
        return Output(typed(node, Output(rest.batch), rest).batch, marks=rest.marks, children=children)

    @property
    def _node(self) -> ProcessNode:
        node = self.operator.node
        assert isinstance(node, ProcessNode)
        return node


def _queues() -> dict[PunctuationType, PunctuationQueue]:
    return {kind: PunctuationQueue() for kind in _KINDS}


def _events(arrivals: Marks, rows: Marks, after: Marks) -> list[int]:
    """Return the order of events: a record arrives, the rows that it caused are processed, then punctuations are
    called.

    Rows are numbered first, then punctuations, then arrivals.
    """
    marks = np.concatenate([rows, after, arrivals])
    turns = np.repeat(np.asarray([1, 2, 0], dtype=np.int64), [len(rows), len(after), len(arrivals)])
    keys = [turns, *(marks[:, column] for column in range(RELEASED))]
    order: list[int] = np.lexsort([keys[0], *reversed(keys[1:])]).tolist()
    return order


def _key_types(layout: Layout) -> tuple[Any, ...]:
    """Return the types of a key's columns with their serde metadata, and whether keys have windows."""
    columns = [layout.schema.field(name) for name in layout.key]
    return (layout.windowed, *((column.type, column.metadata) for column in columns))


def _spec(builder: StoreBuilder) -> StoreSpec:
    fields = [builder.key.field(KEY)]
    if isinstance(builder.value, RowSerde):
        fields += [column for column in builder.value.schema if column.name != KEY]
        value = None
    else:
        fields.append(builder.value.field(VALUE))
        value = VALUE
    windowed = builder.kind == "session"
    if windowed:
        fields[1:1] = [pa.field(name, WINDOW_TYPE) for name in WINDOW_COLUMNS]
    layout = Layout(schema=pa.schema(fields), key=(KEY,), bucket_columns=None, value=value, windowed=windowed)
    return StoreSpec(name=builder.name, kind=builder.kind, layout=layout, retention_ms=builder.retention_ms)
