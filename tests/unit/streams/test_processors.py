"""Tests of processors.

The tests cover their context, their punctuations and refusals of stores.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace_streams import (
    ContextualProcessor,
    ProcessorContext,
    Record,
    RecordContext,
    StreamsBuilder,
    TestRecord,
    TopologyError,
    TopologyTestDriver,
    UserFunctionError,
    key_value_store,
    session_store,
    window_store,
)
from millrace_streams.graph import SourceNode
from millrace_streams.layout import Layout
from millrace_streams.processors import RecordMetadata
from millrace_streams.steps.operator import Operator
from millrace_streams.steps.process_stores import view_of
from millrace_streams.steps.registry import make_step
from millrace_streams.steps.task import Task
from millrace_streams.stores import StoreSpec, TimeBuffer
from millrace_streams.windows import Windowed

TYPES = {"key": "string", "value": "long"}


class Processor:
    """Base class of these tests' processors, which does what a test sets."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        self.context.forward(record)


def run(processor: type, records: list[TestRecord], *, before: Any = lambda stream: stream, **options: Any) -> Any:
    builder = StreamsBuilder()
    before(builder.stream("in", **TYPES)).process(processor, **options).to("out")
    driver = TopologyTestDriver(builder.build(), wall_clock_ms=1000)
    driver.pipe_records(records)
    return driver


def script(*times: int) -> list[TestRecord]:
    return [TestRecord("in", "a", time, time) for time in times]


def test_records_that_a_filter_drops_advance_stream_time() -> None:
    class Ticking(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(
                10, "stream_time", lambda time_ms: context.forward("tick", context.stream_time_ms, time_ms)
            )

    driver = run(Ticking, script(3, 12, 25, 24), before=lambda stream: stream.filter(lambda value: value < 10))
    assert driver.read_records("out") == [
        Record("a", 3, 3),
        Record("tick", 3, 3),
        Record("tick", 12, 12),
        Record("tick", 25, 25),
    ]


def test_wall_clock_punctuations_keep_to_their_multiples_and_can_be_cancelled() -> None:
    class Clock(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            self.handle = context.schedule(100, "wall_clock_time", self.punctuate)

        def punctuate(self, time_ms: int) -> None:
            self.context.forward(Record("at", time_ms, 0))
            if time_ms > 1500:
                self.handle.cancel()

    driver = run(Clock, [])
    for step in (99, 1, 250, 50, 200, 500):
        driver.advance_wall_clock(step)
    assert [record.value for record in driver.read_records("out")] == [1100, 1350, 1400, 1600]


def test_a_record_says_where_it_was_read_and_a_punctuation_does_not() -> None:
    class Where(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(5, "stream_time", lambda time_ms: self.tell("tick"))

        def process(self, record: Record) -> None:
            self.tell(record.key)

        def tell(self, key: str) -> None:
            where = self.context.record_metadata
            self.context.forward(key, -1 if where is None else where.offset, 0)

    driver = run(Where, script(0, 1, 7))
    assert [(record.key, record.value) for record in driver.read_records("out")] == [
        ("a", 0),
        ("tick", -1),
        ("a", 1),
        ("a", 2),
        ("tick", -1),
    ]


def test_a_processor_uses_window_and_session_stores() -> None:
    class Both(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            self.windows, self.sessions = context.store("windows"), context.store("sessions")

        def process(self, record: Record) -> None:
            start = record.timestamp // 10 * 10
            self.windows.put(record.key, (self.windows.fetch(record.key, start) or 0) + 1, start)
            self.sessions.put(Windowed(record.key, start, record.timestamp), record.value)

    stores = [window_store("windows", **TYPES, retention=20), session_store("sessions", **TYPES, retention=20)]
    driver = run(Both, script(1, 2, 11, 35, 3), stores=stores)
    assert list(driver.view("windows").all()) == [("a", 30, 1)]
    assert list(driver.view("windows").fetch("a", 0, 40)) == [(30, 1)]
    assert list(driver.view("sessions").fetch("a")) == [(Windowed("a", 30, 35), 35)]
    assert list(driver.view("sessions").find_sessions("a", 0, 100)) == [(Windowed("a", 30, 35), 35)]
    driver.view("sessions").remove(Windowed("a", 30, 35))
    assert driver.entries("sessions") == []


def test_a_key_value_store_is_read_in_the_order_of_the_keys_bytes() -> None:
    class Keep(Processor):
        def process(self, record: Record) -> None:
            store = self.context.store("numbers")
            for key in (3, -1, 256, 0):
                assert store.put_if_absent(key, f"n{key}") is None
            assert store.put_if_absent(3, "other") == "n3"
            assert [key for key, _ in store.all()] == [0, 3, 256, -1]
            assert [key for key, _ in store.range(1, 256)] == [3, 256]
            assert store.delete(3) == "n3"
            assert store.delete(3) is None

    driver = run(Keep, script(1), stores=[key_value_store("numbers", key="long", value="string")])
    assert [(entry.key, entry.value) for entry in driver.entries("numbers")] == [(0, "n0"), (256, "n256"), (-1, "n-1")]


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (
            lambda context: context.store("other"),
            TopologyError,
            r"the store other is not connected to it \(connected: st\)",
        ),
        (lambda context: context.schedule(0, "stream_time", print), TopologyError, "the interval must be positive"),
        (lambda context: context.schedule(5, "noon", print), TopologyError, "one of stream_time, wall_clock_time"),
        (lambda context: context.forward("a", 1, 0), TopologyError, "init cannot forward, because on Spark it runs"),
        (lambda context: context.forward_value(1), TopologyError, "no record is being processed, so"),
        (lambda context: context.store("st").put(None, 1), ValueError, "the store st cannot hold a key of None"),
    ],
)
def test_misuse_of_the_context_is_refused(use: Any, error: type, message: str) -> None:
    class Misuse(Processor):
        def init(self, context: Any) -> None:
            use(context)

    with pytest.raises((error, UserFunctionError), match=message):
        run(Misuse, [], stores=[key_value_store("st", **TYPES)])


def test_process_values_keeps_the_key() -> None:
    class Other(Processor):
        def process(self, record: Record) -> None:
            self.context.forward(record.with_key("b"))

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process_values(Other).to("out")
    with pytest.raises((TopologyError, UserFunctionError), match="process_values keeps the key: use forward_value"):
        TopologyTestDriver(builder.build()).pipe_records(script(1))


def test_the_context_tells_task_application_and_times_by_kafkas_names() -> None:
    class Tell(ContextualProcessor):
        def process(self, record: Record) -> None:
            context = self.context
            assert context.current_stream_time_ms == context.current_stream_time_ms() == context.stream_time_ms
            assert context.current_system_time_ms == context.current_system_time_ms() == 1234
            assert (context.application_id, str(context.task_id)) == ("orders", "0_1")
            assert context.get_state_store("st").get("nobody") is None
            context.commit()
            context.forward(record.with_value(context.current_stream_time_ms))

    builder = StreamsBuilder()
    stream = builder.stream("in", **TYPES)
    stream.process(Tell, stores=[key_value_store("st", **TYPES)]).to("out")
    driver = TopologyTestDriver(builder.build(), partitions=2, wall_clock_ms=1234, application_id="orders")
    driver.pipe_records(script(5, 3, 9), partition=1)
    assert [record.value for record in driver.read_records("out")] == [5, 5, 9]


# All methods of Kafka Streams 3.9.1's ProcessorContext and ProcessingContext, RecordMetadata, RecordContext and Record.
KAFKAS: dict[type, tuple[str, ...]] = {
    ProcessorContext: (
        *("forward", "applicationId", "taskId", "recordMetadata", "keySerde", "valueSerde", "stateDir", "metrics"),
        *("getStateStore", "schedule", "commit", "appConfigs", "appConfigsWithPrefix"),
        *("currentSystemTimeMs", "currentStreamTimeMs"),
    ),
    RecordMetadata: ("topic", "partition", "offset"),
    RecordContext: ("topic", "partition", "offset", "timestamp", "headers"),
    Record: ("key", "value", "timestamp", "headers", "withKey", "withValue", "withTimestamp", "withHeaders"),
}


@pytest.mark.parametrize("api", KAFKAS, ids=lambda api: api.__name__)
def test_every_method_of_kafkas_interface_exists_or_is_documented_as_absent(api: type) -> None:
    semantics = (Path(__file__).parents[3] / "docs" / "streams" / "semantics.md").read_text(encoding="utf-8")
    absent = semantics.partition("Not there, and why:")[2].partition("\n\nA function")[0]
    for name in KAFKAS[api]:
        ours = re.sub("([A-Z])", r"_\1", name).lower()
        text = name if api is ProcessorContext else f"{api.__name__}.{name}"
        assert hasattr(api, ours) != (f"`{text}`" in absent), name


def test_stream_time_is_that_of_the_records_read_and_not_of_those_that_a_processor_forwards() -> None:
    class Shift(Processor):
        def process(self, record: Record) -> None:
            self.context.forward(record.with_timestamp(record.timestamp + record.value))

    class Tell(Processor):
        def process(self, record: Record) -> None:
            self.context.forward(record.key, self.context.current_stream_time_ms, record.timestamp)

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Shift).process(Tell).to("out")
    records = [TestRecord("in", "a", shift, time) for time, shift in ((10, 50), (20, -15), (15, 0))]
    for at_once in (True, False):
        driver = TopologyTestDriver(builder.build())
        for batch in [records] if at_once else [[record] for record in records]:
            driver.pipe_records(batch)
        found = [(record.value, record.timestamp) for record in driver.read_records("out")]
        assert found == [(10, 60), (20, 5), (20, 15)]


class Sort(Processor):
    """A processor that forwards odd and even values to different children.

    It forwards zero to both.
    """

    def process(self, record: Record) -> None:
        child = None if not record.value else "odd" if record.value % 2 else "even"
        self.context.forward(record, child_name=child)


def sorted_by_child(*, moves: bool) -> TopologyTestDriver:
    builder = StreamsBuilder()
    sort = builder.stream("in", **TYPES).process(Sort, name="sort")
    odd = sort.map_values(lambda value: value * 10, name="odd")
    even = sort.map_values(lambda value: -value, name="even")
    if moves:
        odd.merge(even).select_key(lambda value: "same").group_by_key().count().to_stream().to("out")
    else:
        odd.merge(even).to("out")
    return TopologyTestDriver(builder.build())


@pytest.mark.parametrize("at_once", [True, False])
def test_a_child_takes_what_is_forwarded_to_it_and_to_no_one_by_name(at_once: bool) -> None:
    records = [TestRecord("in", "a", value, value) for value in (1, 2, 0, 4, 3)]
    for moves, expected in ((False, [10, -2, 0, 0, -4, 30]), (True, [1, 2, 3, 4, 5, 6])):
        driver = sorted_by_child(moves=moves)
        for batch in [records] if at_once else [[record] for record in records]:
            driver.pipe_records(batch)
        assert [record.value for record in driver.read_records("out")] == expected


def test_a_child_that_is_not_there_is_refused_with_those_that_are() -> None:
    class Astray(Processor):
        def process(self, record: Record) -> None:
            self.context.forward(record, child_name="nobody")

    with pytest.raises(TopologyError, match=r"no child is named nobody \(children: KSTREAM-SINK-0000000002\)"):
        run(Astray, script(1))


def test_process_values_forwards_a_record_that_keeps_its_key() -> None:
    class Next(Processor):
        def process(self, record: Record) -> None:
            self.context.forward(record.with_value(record.value + 1))

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process_values(Next).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records(script(1))
    assert driver.read_records("out") == [Record("a", 2, 1)]


def test_records_of_a_punctuation_have_the_stream_time_or_before_any_record_the_epoch() -> None:
    class Clock(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(100, "wall_clock_time", lambda now_ms: context.forward("at", int(context.stream_time_ms)))

    driver = run(Clock, [])
    driver.advance_wall_clock(100)
    driver.pipe_records(script(0))
    driver.advance_wall_clock(100)
    driver.pipe_records(script(7))
    driver.advance_wall_clock(100)
    assert driver.read_records("out") == [
        Record("at", -1, 0), Record("a", 0, 0), Record("at", 0, 0), Record("a", 7, 7), Record("at", 7, 7),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("now_ms", "called_at"),
    [
        ((99, 100, 101, 199, 200), [100, 200]),
        ((350, 399, 400), [350, 400]),
        ((300, 301, 400), [300, 400]),
        ((1000, 1099, 1100, 1101), [1000, 1100]),
    ],
)
def test_a_punctuation_that_missed_several_times_is_called_once_and_then_at_a_multiple(
    now_ms: tuple[int, ...], called_at: list[int]
) -> None:
    class Clock(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(100, "wall_clock_time", lambda time_ms: context.forward("at", time_ms, 0))

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Clock).to("out")
    driver = TopologyTestDriver(builder.build(), wall_clock_ms=0)
    for before, now in zip((0, *now_ms), now_ms, strict=False):
        driver.advance_wall_clock(now - before)
    assert [record.value for record in driver.read_records("out")] == called_at


def test_rows_that_the_wall_clock_caused_reach_a_processor_without_a_record_of_its_own() -> None:
    class Clock(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(100, "wall_clock_time", lambda time_ms: context.forward("at", time_ms, 50))

    class Tell(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(10, "stream_time", lambda time_ms: context.forward("tick", time_ms, time_ms))

        def process(self, record: Record) -> None:
            self.context.forward(record.key, self.context.current_stream_time_ms, record.timestamp)

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Clock).process(Tell).to("out")
    driver = TopologyTestDriver(builder.build(), wall_clock_ms=0)
    driver.advance_wall_clock(100)
    driver.pipe_records(script(20))
    driver.advance_wall_clock(100)
    assert driver.read_records("out") == [
        Record("at", -1, 50), Record("a", 20, 20), Record("tick", 20, 20), Record("at", 20, 50),
    ]  # fmt: skip


def test_a_processor_that_cannot_begin_blames_no_record() -> None:
    class Unready(Processor):
        def init(self, context: Any) -> None:
            raise KeyError("nothing")

    with pytest.raises(UserFunctionError, match="the processor's beginning raised KeyError") as failure:
        run(Unready, script(1, 2))
    assert failure.value.offset is None


def test_sessions_are_fetched_by_end_and_windows_up_to_the_retention() -> None:
    class Keep(Processor):
        def process(self, record: Record) -> None:
            windows, sessions = self.context.store("windows"), self.context.store("sessions")
            for start, end in ((10, 12), (0, 30), (10, 20)):
                sessions.put(Windowed("a", start, end), start + end)
            for start in (20, 1, 0):
                windows.put("a", start, start)
            assert windows.fetch("a", 1) == 1
            assert windows.fetch("a", 0) is None

    stores = [window_store("windows", **TYPES, retention=20), session_store("sessions", **TYPES, retention=40)]
    driver = run(Keep, script(1), stores=stores)
    assert [value for _, value in driver.view("sessions").fetch("a")] == [22, 30, 30]
    assert list(driver.view("windows").all()) == [("a", 1, 1), ("a", 20, 20)]
    driver.view("sessions").put(Windowed("a", 52, 69), 1)
    assert [session for session, _ in driver.view("sessions").fetch("a")] == [
        Windowed("a", 0, 30),
        Windowed("a", 52, 69),
    ]
    assert [session for session, _ in driver._tasks[0].stores["sessions"].packed_entries()] == [
        Windowed("a", 0, 30),
        Windowed("a", 52, 69),
    ]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_punctuation_comes_after_all_that_its_record_caused(at_once: bool) -> None:
    class Ticking(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(10, "stream_time", lambda time_ms: context.forward("tick", time_ms, time_ms))

    builder = StreamsBuilder()
    stream = builder.stream("in", **TYPES)
    stream.process(Ticking).merge(stream.map_values(lambda value: -value)).to("out")
    driver = TopologyTestDriver(builder.build())
    records = script(10, 15, 25)
    for batch in [records] if at_once else [[record] for record in records]:
        driver.pipe_records(batch)
    assert [record.value for record in driver.read_records("out")] == [10, -10, 10, 15, -15, 25, -25, 25]


def test_a_processor_that_forwards_another_type_is_named() -> None:
    class Wrong(Processor):
        def process(self, record: Record) -> None:
            self.context.forward(record.with_value("one") if record.timestamp == 1 else record)

    with pytest.raises(UserFunctionError, match=r"wrong: .*'one' under key 'a' does not fit int64") as failure:
        run(Wrong, script(0, 1, 2), name="wrong")
    error = failure.value
    assert (error.node, error.topic, error.partition, error.offset) == ("wrong", "in", 0, 1)


def test_the_store_of_a_suppression_has_no_view() -> None:
    layout = Layout(schema=pa.schema([("key", pa.string())]), key=("key",), bucket_columns=None)
    with pytest.raises(TypeError, match="TimeBuffer is not a store of processors"):
        view_of(TimeBuffer(StoreSpec(name="b", kind="buffer", layout=layout, form="held")))


def test_a_node_without_a_step_cannot_run() -> None:
    layout = Layout(schema=pa.schema([("key", pa.string())]), key=("key",), bucket_columns=None)
    operator = Operator(node=SourceNode(name="read", topic="t"), inputs=(), result=layout)
    with pytest.raises(TopologyError, match="read: SourceNode is not a node that can be run"):
        make_step(operator)


def test_all_dropped_records_are_counted_although_processors_share_a_store() -> None:
    builder = StreamsBuilder()
    stream, store = builder.stream("in", **TYPES), key_value_store("shared", **TYPES)
    for output in ("one", "other"):
        stream.process(Processor, stores=[store]).to(output)
    stream.group_by_key().count().to_stream().to("counts")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("in", key, 1, 0) for key in ("a", None, "b", None, None)])
    assert [record.value for record in driver.read_records("counts")] == [1, 1]
    assert driver.dropped_records == 3


def test_stream_time_punctuations_are_due_at_multiples_of_the_interval() -> None:
    class Ticking(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(10, "stream_time", lambda time_ms: context.forward("tick", time_ms))

        def process(self, record: Record) -> None:
            pass

    driver = run(Ticking, script(5, 9, 10, 19, 20))
    assert [record.value for record in driver.read_records("out")] == [5, 10, 20]


def test_the_failure_of_a_processors_beginning_names_no_record() -> None:
    class Failing(Processor):
        def init(self, context: Any) -> None:
            if failing:
                raise ValueError("broken")

    failing: list[bool] = []
    driver = run(Failing, [])
    driver._tasks = [Task(driver._steps)]
    failing.append(True)
    with pytest.raises(UserFunctionError, match=r"raised ValueError: broken \(no record\)") as failure:
        driver.pipe_records(script(5))
    assert failure.value.offset is None
