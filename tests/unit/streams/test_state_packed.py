"""Tests of state as bytes.

A topology that is packed and restored continues unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams import (
    Record,
    StreamsBuilder,
    Suppressed,
    TestRecord,
    TopologyTestDriver,
    col,
    count,
    key_value_store,
    mean,
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
from millrace_streams import min as min_
from millrace_streams import sum as sum_
from millrace_streams.layout import WINDOW_TYPE, Layout
from millrace_streams.state.rows import LIMITS, KeptRows, Limits
from millrace_streams.state.variables import MemoryVariables
from millrace_streams.steps.packed_state import kept_rows, save, store_over
from millrace_streams.steps.task import Task, TaskResult
from millrace_streams.stores import KeyValueStore, StoreSpec, TimeBuffer
from millrace_streams.stores.base import Change, Stored
from millrace_streams.stores.below import packed
from millrace_streams.stores.entries import Held, WaitingForTable
from millrace_streams.windows import Windowed

TYPES = {"key": "string", "value": "long"}
ROWS = row(pa.schema([("n", pa.int64()), ("tag", pa.string())]))


class Restarting(TopologyTestDriver):
    """A driver that restarts its task after each batch.

    The new task has only the stored changes.
    """

    limits: ClassVar[Limits]
    variables: dict[str, MemoryVariables]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.kept: dict[str, KeptRows] = {}
        super().__init__(*arguments, **options)

    def _collect(self, result: TaskResult) -> None:
        super()._collect(result)
        [task] = self._tasks
        if self.kept:
            save(task.stores, self.kept, result)
        else:
            # The first batch ran in memory.
            self.variables = {name: MemoryVariables() for name in task.stores}
            save(task.stores, self._kept(task), result)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Continue from the stored state."""
        [task] = self._tasks
        self.kept = self._kept(task)
        stores = {name: store_over(task.stores[name].spec, kept) for name, kept in self.kept.items()}
        self._tasks = [Task(self._steps, stores)]

    def _kept(self, task: Task) -> dict[str, KeptRows]:
        return {name: kept_rows(store.spec, self.variables[name], self.limits) for name, store in task.stores.items()}


class Everything:
    """A processor that uses every kind of store and punctuation."""

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
    """A processor that keeps rows in every kind of store.

    It forwards the rows that it reads.
    """

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


def keeping_rows(x: Any, y: Any) -> None:
    types: dict[str, Any] = {"key": "string", "value": ROWS}
    stores = [
        key_value_store("rows", **types),
        window_store("windows of rows", **types, retention=30),
        session_store("sessions of rows", **types, retention=20),
        versioned_store("versions of rows", **types, history=15),
    ]
    x.process(KeepsRows, stores=stores, value="string").to("out")


def shared_store(x: Any, y: Any) -> None:
    """Build processors that share a store. They run record by record, and their changes are packed together."""
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


class ByNumber:
    """A processor whose store has keys of another type than its records."""

    def init(self, context: Any) -> None:
        self.context, self.numbers = context, context.store("numbers")

    def process(self, record: Record) -> None:
        number = (record.value or 0) % 5
        self.numbers.put(number, (self.numbers.get(number) or 0) + 1)
        self.context.forward(record.with_value(self.numbers.get(number)))


def look_ups(x: Any, y: Any) -> None:
    x.join(y.to_table(), joined).to("joined")
    counts = y.group_by_key().aggregate(n=count(), most=max_("value"))
    x.left_join(counts, lambda one, other: joined(one, other and other["n"]), value="long").to("counted")
    x.process(ByNumber, stores=[key_value_store("numbers", key="long", value="long")]).to("numbers")


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


def named_folds(x: Any, y: Any) -> None:
    grouped = x.group_by_key()
    all_four: dict[str, Any] = {"n": count(), "sum": sum_("value"), "least": min_("value"), "most": max_("value")}
    grouped.windowed_by(sliding(7, grace=20)).aggregate(**all_four).to_stream().to("sliding")
    grouped.windowed_by(sessions(5, grace=9)).aggregate(**all_four).to_stream().to("sessions")
    final = grouped.windowed_by(tumbling(10, grace=4)).emit_strategy("on_window_close")
    final.aggregate(**all_four).to_stream().to("finals")
    x.to_table().group_by(lambda key, value: (str(value % 3), value), key="string").count().to_stream().to("groups")


def means(x: Any, y: Any) -> None:
    grouped = x.group_by_key()
    both: dict[str, Any] = {"half": mean(col("value") / 2), "twice": sum_(col("value") * 2)}
    grouped.windowed_by(sliding(7, grace=20)).aggregate(**both).to_stream().to("sliding")
    grouped.windowed_by(sessions(5, grace=9)).aggregate(**both).to_stream().to("sessions")
    grouped.windowed_by(tumbling(10)).emit_strategy("on_window_close").aggregate(**both).to_stream().to("finals")
    groups = x.to_table().group_by(lambda key, value: (str(value % 3), value), key="string")
    groups.aggregate(**both).to_stream().to("groups")


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


class InPages(Restarting):
    """Stores with all but their newest changes in pages.

    Large stores keep their changes in the same way.
    """

    limits = Limits(log_bytes=1, page_bytes=1500, slot_ms=5)


class InTheLog(Restarting):
    """Stores whose changes are all in the log."""

    limits = LIMITS


@pytest.mark.parametrize(
    "build",
    [processors, keeping_rows, shared_store, look_ups, joins, windows, named_folds, means, rows],
    ids=lambda build: build.__name__,
)
@settings(max_examples=6)
@given(script=st.lists(st.lists(records, min_size=1, max_size=6), min_size=2, max_size=6))
def test_a_restored_task_continues_where_it_was(
    build: Callable[[Any, Any], None], script: list[list[TestRecord]]
) -> None:
    results = []
    for kind in (TopologyTestDriver, InPages, InTheLog):
        builder = StreamsBuilder()
        build(builder.stream("x", **TYPES), builder.stream("y", **TYPES))
        driver = kind(builder.build())
        for batch in script:
            driver.pipe_records(batch)
        results.append({sink.topic: driver.read_records(sink.topic) for sink in driver.plan.sinks})  # type: ignore[union-attr]
    assert results[0] == results[1]
    assert results[0] == results[2]


def spec(layout_types: Mapping[str, pa.DataType]) -> StoreSpec:
    layout = Layout(schema=pa.schema(list(layout_types.items())), key=("key",), bucket_columns=None, value="value")
    return StoreSpec(name="s", kind="key_value", layout=layout)


def test_deleted_entries_and_numbers_are_kept() -> None:
    longs = spec({"key": pa.string(), "value": pa.int64()})
    variables = MemoryVariables()
    for entries in ({"a": Stored(1, 10), "b": Stored(2, 20)}, {"a": None}):
        kept_rows(longs, variables).save(packed(longs, entries.items()), {"stream_time": 20}, 0)
    again = store_over(longs, kept_rows(longs, variables))
    assert isinstance(again, KeyValueStore)
    assert again.get("a") is None
    assert list(again.entries()) == [("b", (2, 20))]
    assert again.numbers == {"stream_time": 20}
    assert again.number_before("stream_time") == 20


def test_a_store_whose_entries_were_all_deleted_has_no_pages_and_no_slots() -> None:
    longs = spec({"key": pa.string(), "value": pa.int64()})
    variables, limits = MemoryVariables(), Limits(log_bytes=1, page_bytes=1500)
    batches: list[dict[Any, Any]] = [{key: Stored(1, 10) for key in "abc"}, {"a": None}, dict.fromkeys("bc"), {}]
    pages = []
    for entries in batches:
        kept_rows(longs, variables, limits).save(packed(longs, entries.items()), {}, 0)
        pages.append(len(variables.pages))
    assert pages == [1, 1, 0, 0]
    kept = kept_rows(longs, variables, limits)
    assert (kept.slots, kept.facts.slots, kept.rows(kept_from_ms=0).height) == ([], {}, 0)


def large(longs: StoreSpec) -> tuple[MemoryVariables, Limits]:
    variables, limits = MemoryVariables(), Limits(log_bytes=1, page_bytes=8 << 10)
    entries = {f"{key}": Stored(key, key) for key in range(5000)}
    kept_rows(longs, variables, limits).save(packed(longs, entries.items()), {}, 0)
    assert len(variables.pages) >= 16
    return variables, limits


def test_prefetched_rows_are_loaded_at_once_from_few_pages() -> None:
    longs = spec({"key": pa.string(), "value": pa.int64()})
    kept = kept_rows(longs, *large(longs))
    store = store_over(longs, kept)
    assert isinstance(store, KeyValueStore)
    store.want(["17", "4999", "none"])
    assert kept.reads <= 3
    assert [store.get("17"), store.get("4999"), store.get("none")] == [(17, 17), (4999, 4999), None]
    store.put("18", 0, 0)
    assert store.before("18") == (18, 18)
    assert kept.reads <= 4
    assert len(store.rows) == 3


def test_many_single_lookups_load_all_rows_of_the_store_at_once() -> None:
    longs = spec({"key": pa.string(), "value": pa.int64()})
    store = store_over(longs, kept_rows(longs, *large(longs)))
    assert isinstance(store, KeyValueStore)
    store.put("0", None, 0)
    for key in range(1, 40):
        assert store.get(f"{key}") == (key, key)
    assert len(store.rows) == 4999
    assert store.get("0") is None
    assert store.commit() == Change(entries={"0": None}, numbers={}, touched=True)


def test_only_rows_of_closing_windows_are_read() -> None:
    # Expired rows are in no page.
    columns = {"key": pa.string(), "window_start": WINDOW_TYPE, "window_end": WINDOW_TYPE, "value": pa.int64()}
    layout = Layout(
        schema=pa.schema(list(columns.items())), key=("key",), bucket_columns=None, value="value", windowed=True
    )
    finals = StoreSpec(name="b", kind="buffer", form="final", layout=layout)
    variables, limits = MemoryVariables(), Limits(log_bytes=1, page_bytes=1 << 20, slot_ms=100)
    keys = [Windowed(f"{place}", start, start + 100) for start in range(0, 1000, 100) for place in range(20)]
    held = {key: Held(key, 1, key.start, None, key.end) for key in keys}
    kept_rows(finals, variables, limits).save(packed(finals, held.items()), {}, -(2**63))
    assert len(variables.pages) == 10
    kept = kept_rows(finals, variables, limits)
    buffer = store_over(finals, kept)
    assert isinstance(buffer, TimeBuffer)
    left = []
    while (oldest_ms := buffer.oldest_ms(800)) is not None and oldest_ms <= 800:
        left.append(buffer.pop_oldest()[0])
    assert left == sorted(keys[:160], key=lambda key: (key.end, key.key))
    assert buffer.entry(keys[-1]) == held[keys[-1]]
    assert kept.reads == 9
    change = buffer.commit()
    kept.save(packed(finals, change.entries.items()), change.numbers, buffer.kept_from_ms)
    # The next small batch distributes the log entries of the large one.
    kept_rows(finals, variables, limits).save(packed(finals, []), {}, buffer.kept_from_ms)
    assert len(variables.pages) == 2
    again = store_over(finals, kept_rows(finals, variables, limits))
    assert isinstance(again, TimeBuffer)
    assert len(again) == 40


@pytest.mark.parametrize("form", ["held", "waiting_for_table"])
def test_a_buffer_finds_its_oldest_entry_among_those_that_are_stored(form: Any) -> None:
    longs = spec({"key": pa.string(), "value": pa.int64()}).layout
    described = StoreSpec(name="b", kind="buffer", layout=longs, form=form, other=longs)
    if form == "held":
        entries: dict[Any, Any] = {key: Held(key, 1, due, None, due) for key, due in (("a", 7), ("b", 5), ("c", 9))}
    else:
        entries = {at: WaitingForTable(at, "a", 1, time_ms, "a") for at, time_ms in enumerate((7, 5, 9))}
    variables = MemoryVariables()
    kept_rows(described, variables).save(packed(described, entries.items()), {}, -(2**63))
    buffer, other = (store_over(described, kept_rows(described, variables)) for _ in range(2))
    assert isinstance(buffer, TimeBuffer)
    assert isinstance(other, TimeBuffer)
    assert len(other) == 3
    assert buffer.oldest_ms(6) == 5
    assert buffer.pop_oldest()[1] == sorted(entries.values(), key=lambda entry: entry.timestamp)[0]
    assert buffer.oldest_ms() == 7


@pytest.mark.parametrize(("grace_ms", "expected"), [(0, [1, 2]), (3, [1]), (5, [])])
def test_records_that_wait_for_a_table_leave_after_the_grace_of_the_changed_topology(
    grace_ms: int, expected: list[int]
) -> None:
    def waiting(grace_ms: int) -> InTheLog:
        builder = StreamsBuilder()
        table = builder.table("t", **TYPES, versioned=100)
        builder.stream("s", **TYPES).left_join(table, lambda one, other: one, value="long", grace=grace_ms).to("out")
        return InTheLog(builder.build())

    before, after = waiting(20), waiting(grace_ms)
    before.pipe_records([TestRecord("s", "a", 1, 5)])
    after.variables = before.variables
    after.begin_anew()
    after.pipe_records([TestRecord("s", "a", 2, 8)])
    assert [record.value for record in after.read_records("out")] == expected


def test_stream_time_and_the_next_punctuation_are_kept() -> None:
    class Tell:
        def init(self, context: Any) -> None:
            self.context = context
            context.schedule(10, "stream_time", lambda time_ms: context.forward("tick", time_ms))

        def process(self, record: Record) -> None:
            self.context.forward(record.key, int(self.context.current_stream_time_ms))

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Tell).to("out")
    driver = InTheLog(builder.build())
    for time_ms in (50, 3, 59, 60):
        driver.pipe_records([TestRecord("in", "a", 1, time_ms)])
    found = [(record.key, record.value) for record in driver.read_records("out")]
    assert found == [("a", 50), ("tick", 50), ("a", 50), ("a", 59), ("a", 60), ("tick", 60)]
