"""State as bytes: a topology that is packed and restored after every batch goes on as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams import (
    IncompatibleStateError,
    Record,
    StreamsBuilder,
    Suppressed,
    TestRecord,
    TopologyTestDriver,
    count,
    key_value_store,
    row,
    session_store,
    sessions,
    sliding,
    tumbling,
    versioned_store,
    window_store,
    within,
)
from millrace_streams import max as max_
from millrace_streams.layout import Layout
from millrace_streams.steps.chunks import load_store, save_delta
from millrace_streams.steps.store import Store
from millrace_streams.steps.task import Task, TaskResult
from millrace_streams.stores import KeyValueStore, ObjectStore, StoreSpec, new_store
from millrace_streams.stores.packing import pack_change, pack_store, restore
from millrace_streams.windows import Windowed

TYPES = {"key": "string", "value": "long"}
ROWS = row(pa.schema([("n", pa.int64()), ("tag", pa.string())]))


class Restarting(TopologyTestDriver):
    """Packs what each batch changed, and goes on with a task that is made of the packed state alone."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.chunks: dict[str, list[bytes]] = {}
        super().__init__(*arguments, **options)

    def _collect(self, result: TaskResult) -> None:
        super()._collect(result)
        [task] = self._tasks
        for name, store in task.stores.items():
            if isinstance(store, ObjectStore):
                chunks = [*self.chunks.get(name, []), pack_change(store.spec, result.changes[name])]
                self.chunks[name] = chunks if len(chunks) % 3 else pack_store(store)
            elif name in result.deltas:
                write = save_delta(store, self.chunks.get(name, []), result.deltas[name])
                kept = [] if write.replace else self.chunks[name]
                self.chunks[name] = [*kept, *write.chunks]
        stores: dict[str, Any] = {}
        for name, store in task.stores.items():
            if isinstance(store, Store):
                stores[name] = load_store(store.spec, self.chunks.get(name, []))
            else:
                stores[name] = new_store(store.spec)
                restore(stores[name], self.chunks[name])
        self._tasks = [Task(self._steps, stores)]


class Everything:
    """Uses every kind of store, and both kinds of punctuation."""

    def init(self, context: Any) -> None:
        self.context = context
        self.sums, self.windows = context.store("sums"), context.store("windows")
        self.sessions, self.versions = context.store("sessions"), context.store("versions")
        context.schedule(9, "stream_time", lambda time_ms: context.forward("tick", len(list(self.sums.all())), time_ms))

    def process(self, record: Record) -> None:
        if record.key is None or record.value is None:
            return
        self.sums.put(record.key, (self.sums.get(record.key) or 0) + record.value)
        self.windows.put(record.key, record.value, record.timestamp // 10 * 10)
        self.sessions.put(Windowed(record.key, record.timestamp, record.timestamp + 3), record.value)
        self.versions.put(record.key, record.value or None, record.timestamp)
        before = self.versions.get(record.key, as_of=record.timestamp - 5)
        found = len(list(self.sessions.find_sessions(record.key, record.timestamp - 9, record.timestamp)))
        started = len(list(self.windows.fetch(record.key, 0, record.timestamp)))
        self.context.forward(record.with_value(found * 100 + started * 10 + (before.value if before else 0)))


def processors(x: Any, y: Any) -> None:
    stores = [
        key_value_store("sums", **TYPES),
        window_store("windows", **TYPES, retention=30),
        session_store("sessions", **TYPES, retention=20),
        versioned_store("versions", **TYPES, history=15),
    ]
    x.process(Everything, stores=stores).to("out")


class KeepsRows:
    """Keeps rows in every kind of store, and forwards what it finds there."""

    def init(self, context: Any) -> None:
        self.context = context
        self.rows, self.windows = context.store("rows"), context.store("windows of rows")
        self.sessions, self.versions = context.store("sessions of rows"), context.store("versions of rows")

    def process(self, record: Record) -> None:
        if record.key is None:
            return
        found = [self.rows.get(record.key), *(row for _, row in self.windows.fetch(record.key, 0, 90))]
        found += [row for _, row in self.sessions.fetch(record.key)]
        newest = self.versions.get(record.key)
        found.append(None if newest is None else newest.value)
        self.context.forward(record.with_value(json.dumps(found, default=str)))
        value = {"n": record.value, "tag": "t"}
        self.rows.put(record.key, value)
        self.windows.put(record.key, value, record.timestamp // 10 * 10)
        self.sessions.put(Windowed(record.key, record.timestamp, record.timestamp + 3), value)
        self.versions.put(record.key, value, record.timestamp)


def kept_rows(x: Any, y: Any) -> None:
    types: dict[str, Any] = {"key": "string", "value": ROWS}
    stores = [
        key_value_store("rows", **types),
        window_store("windows of rows", **types, retention=30),
        session_store("sessions of rows", **types, retention=20),
        versioned_store("versions of rows", **types, history=15),
    ]
    x.process(KeepsRows, stores=stores, value="string").to("out")


def shared_store(x: Any, y: Any) -> None:
    """Processors that share a store run record by record, and what they changed is packed as one."""
    store = key_value_store("sums", **TYPES)
    for stream in (x, y):
        stream.process(Summing, stores=[store]).to("out")
    x.group_by_key().count(store="n").to_stream().to("counts")


class Summing:
    def init(self, context: Any) -> None:
        self.context, self.sums = context, context.store("sums")

    def process(self, record: Record) -> None:
        if record.key is not None:
            self.sums.put(record.key, (self.sums.get(record.key) or 0) + (record.value or 1))
            self.context.forward(record.with_value(self.sums.get(record.key)))


def joined(left: Any, right: Any) -> int:
    return (left or 0) * 10 + (right or 0)


def joins(x: Any, y: Any) -> None:
    x.outer_join(y, joined, window=within(6, grace=4)).to("streams")
    versions = y.to_table(versioned=30)
    x.left_join(versions, joined, grace=8).to("versions")
    left, right = x.to_table(), y.to_table()
    left.outer_join(right, joined, store="both").suppress(Suppressed.until_time_limit(12)).to_stream().to("tables")
    by_value = left.left_join(right, joined, foreign_key=lambda value: "abc"[value % 3] if value > 1 else None)
    by_value.to_stream().to("foreign")


def windows(x: Any, y: Any) -> None:
    grouped = x.group_by_key()
    final = grouped.windowed_by(tumbling(10, grace=4))
    final.emit_strategy("on_window_close").count(store="f").to_stream().to("finals")
    final.count(store="c").suppress(Suppressed.until_window_closes()).to_stream().to("suppressed")
    grouped.windowed_by(sliding(7, grace=20)).reduce(lambda one, other: one + other).to_stream().to("sliding")
    grouped.windowed_by(sessions(5, grace=9)).aggregate(n=count(), top=max_("value")).to_stream().to("sessions")


def rows(x: Any, y: Any) -> None:
    typed = x.map_values(lambda value: None if value is None else {"n": value, "tag": str(value)}, value=ROWS)
    table = typed.to_table(store="t")
    table.filter(lambda value: value["n"] > 2).to_stream().to("large")
    groups = table.group_by("tag").aggregate(
        lambda: 0, lambda k, v, n: n + v["n"], lambda k, v, n: n - v["n"], value="long"
    )
    groups.to_stream().to("groups")
    late = typed.group_by_key().windowed_by(sessions(5)).reduce(lambda one, other: other or one, store="s")
    late.suppress(Suppressed.until_window_closes()).to_stream().to("late")


records = st.builds(
    TestRecord,
    st.sampled_from("xy"),
    st.sampled_from(["a", "b", "c", None]),
    st.none() | st.integers(0, 9),
    st.integers(0, 70),
)


@pytest.mark.parametrize(
    "build", [processors, kept_rows, shared_store, joins, windows, rows], ids=lambda build: build.__name__
)
@settings(max_examples=6)
@given(script=st.lists(st.lists(records, min_size=1, max_size=6), min_size=2, max_size=6))
def test_a_restored_task_goes_on_where_it_was(
    build: Callable[[Any, Any], None], script: list[list[TestRecord]]
) -> None:
    results = []
    for kind in (TopologyTestDriver, Restarting):
        builder = StreamsBuilder()
        build(builder.stream("x", **TYPES), builder.stream("y", **TYPES))
        driver = kind(builder.build())
        for batch in script:
            driver.pipe_records(batch)
        results.append({sink.topic: driver.read_records(sink.topic) for sink in driver.plan.sinks})  # type: ignore[union-attr]
    assert results[0] == results[1]


def spec(layout_types: Mapping[str, pa.DataType]) -> StoreSpec:
    layout = Layout(schema=pa.schema(list(layout_types.items())), key=("key",), bucket_columns=None, value="value")
    return StoreSpec(name="s", kind="key_value", layout=layout)


def test_deleted_entries_and_numbers_are_packed() -> None:
    longs = spec({"key": pa.string(), "value": pa.int64()})
    store = new_store(longs)
    assert isinstance(store, KeyValueStore)
    store.put("a", 1, 10)
    store.put("b", 2, 20)
    store.numbers["stream_time"] = 20
    first = pack_change(longs, store.commit())
    store.put("a", None, 30)
    assert store.before("a") == (1, 10)
    second = pack_change(longs, store.commit())
    again = new_store(longs)
    restore(again, [first, second])
    assert list(again.entries()) == [("b", (2, 20))]
    assert again.numbers == {"stream_time": 20}
    assert again.number_before("stream_time") == 20


def test_state_of_other_columns_or_versions_is_refused() -> None:
    longs = spec({"key": pa.string(), "value": pa.int64()})
    [chunk] = pack_store(new_store(longs))
    with pytest.raises(
        IncompatibleStateError, match=r"store s: the state's columns are .* begin with a new checkpoint"
    ):
        restore(new_store(spec({"key": pa.string(), "value": pa.string()})), [chunk])
    with pytest.raises(IncompatibleStateError, match="store s: its state has version 7 and kind 2"):
        restore(new_store(longs), [bytes([7]) + chunk[1:]])
