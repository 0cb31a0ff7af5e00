"""Tests of the arguments of a fold's functions.

On every runner they are the same wherever micro-batches end.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import combinations, pairwise
from typing import Any

import pyarrow as pa
import pytest

from millrace_streams import (
    Record,
    StreamsBuilder,
    TestRecord,
    Topology,
    TopologyTestDriver,
    UserFunctionError,
    Windowed,
    compile_topology,
    hopping,
    key_value_store,
    row,
    session_store,
    sessions,
    sliding,
    tumbling,
    versioned_store,
    window_store,
)
from millrace_streams.compiler import stages_of
from millrace_streams.runners.packed_rows import from_batch, to_batches
from millrace_streams.runners.worker import BoundedRun, WorkerStage

from .test_generated_partitions import read
from .test_state_packed import InTheLog
from .test_worker import Variable, called

pytestmark = pytest.mark.slow

SCRIPT = [TestRecord("x", "ab"[place % 2], value, 3 * place) for place, value in enumerate((1, 2, 3, 2, 3, 1, 2))]
ROWS = row(pa.schema([("n", pa.int64()), ("total", pa.float64())]))
WINDOWS = [tumbling(9), hopping(9, advance=3), sliding(6), sessions(6)]

CALLS: list[str] = []


def seen(*arguments: Any) -> None:
    """Note the arguments of a call; their text tells 3 from 3.0, and shows the order of a row's columns."""
    CALLS.append(repr(arguments))


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an aggregator that notes its arguments."""

    def call(key: Any, value: Any, aggregate: Any) -> Any:
        seen(key, value, aggregate)
        return function(value, aggregate)

    return call


def merger(key: Any, one: Any, other: Any) -> Any:
    seen(key, one, other)
    return one


def total(value: Any, aggregate: Any) -> Any:
    return int(aggregate) + value


def in_row(value: Any, aggregate: Any) -> Any:
    return {"total": aggregate["n"] + value, "n": aggregate["n"] + 1, "more": 1}


def reading(value: Any) -> Any:
    seen(value)
    return value


def reducing(one: Any, other: Any) -> Any:
    seen(one, other)
    return int(one) + int(other)


AGGREGATES: dict[str, tuple[Any, Any, Any]] = {
    "int in a double": (lambda: 0, total, "double"),
    "bool in a long": (lambda: False, lambda value, _: value > 2, "long"),
    "tuple in JSON": (lambda: (), lambda value, found: (*found, value), "json"),
    "keys of JSON": (dict, lambda value, found: {**found, value: True}, "json"),
    "rows": (lambda: {"n": 0, "total": 0}, in_row, ROWS),
    "list": (list, lambda value, found: (*found, value), pa.list_(pa.float64())),
    "struct": (dict, lambda value, _: {"a": value}, pa.struct([("a", pa.float64()), ("b", pa.string())])),
    "float": (lambda: 0, lambda value, found: found + value / 10, pa.float32()),
    "decimal": (lambda: 0, lambda value, found: Decimal(value) / 8, pa.decimal128(10, 2)),
    "time": (lambda: 0, lambda value, _: dt.datetime(2026, 1, value), pa.timestamp("us", tz="UTC")),
    "time in ms": (
        lambda: 0,
        lambda value, _: dt.datetime(2026, 1, value, microsecond=1999, tzinfo=dt.UTC),
        pa.timestamp("ms", tz="UTC"),
    ),
}


def built(build: Callable[[Any], Any]) -> Topology:
    builder = StreamsBuilder()
    build(builder.stream("x", key="string", value="long")).to_stream().to("out")
    return builder.build()


def splits(records: list[TestRecord], borders_max: int) -> Iterator[list[list[TestRecord]]]:
    """Yield the records in batches, with every set of at most ``borders_max`` borders."""
    places = range(1, len(records))
    for borders in (chosen for size in range(borders_max + 1) for chosen in combinations(places, size)):
        yield [records[first:end] for first, end in pairwise((0, *borders, len(records)))]


def calls_of(run: Callable[..., None], *arguments: Any) -> list[str]:
    """Return the calls of a run in a fixed order, because a batch calls key by key."""
    CALLS.clear()
    run(*arguments)
    return sorted(CALLS)


def in_driver(topology: Topology, batches: list[list[TestRecord]], driver: type[TopologyTestDriver]) -> None:
    running = driver(topology)
    for batch in batches:
        running.pipe_records(batch)


def in_workers(topology: Topology, batches: list[list[TestRecord]]) -> None:
    cut, states, offset = stages_of(compile_topology(topology, {})), defaultdict(Variable), 0  # type: ignore[var-annotated]
    for batch in batches:
        rows = read(cut, batch, offset, 1)
        offset += len(batch)
        for stage in cut.stages:
            worker = WorkerStage.of(cut, stage, 1)
            rows = [row for bucket in {row.bucket for row in rows} for row in called(worker, bucket, rows, states)]


def in_batch(topology: Topology) -> None:
    cut = stages_of(compile_topology(topology, {}))
    rows = read(cut, SCRIPT, 0, 1)
    for stage in cut.stages:
        rows.sort(key=lambda row: (row.bucket, row.sequence))
        run = BoundedRun(WorkerStage.of(cut, stage, 1))
        rows = [row for batch in run(to_batches(rows)) for row in from_batch(batch)]


def check(build: Callable[[Any], Any], *, borders_max: int = 1) -> None:
    """Compare the calls of all runners and borders with those of single records that go through stored state."""
    topology = built(build)
    expected = calls_of(in_driver, topology, [[record] for record in SCRIPT], InTheLog)
    assert expected
    for batches in splits(SCRIPT, borders_max):
        assert calls_of(in_driver, topology, batches, TopologyTestDriver) == expected, batches
    assert calls_of(in_batch, topology) == expected
    for batches in ([SCRIPT], [SCRIPT[:3], SCRIPT[3:]]):
        assert calls_of(in_driver, topology, batches, InTheLog) == expected, batches
        assert calls_of(in_workers, topology, batches) == expected, batches


@pytest.mark.parametrize("name", AGGREGATES)
def test_an_aggregator_gets_aggregates_as_their_column_holds_them(name: str) -> None:
    initializer, function, value = AGGREGATES[name]
    borders_max = len(SCRIPT) if name in ("int in a double", "rows") else 1
    check(lambda x: x.group_by_key().aggregate(initializer, noted(function), value=value), borders_max=borders_max)


@pytest.mark.parametrize("emit", ["on_window_update", "on_window_close"])
@pytest.mark.parametrize("name", ["int in a double", "rows", "tuple in JSON"])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: type(window).__name__)
def test_an_aggregator_in_windows_gets_aggregates_as_their_column_holds_them(window: Any, name: str, emit: Any) -> None:
    initializer, function, value = AGGREGATES[name]
    merging = (merger,) if window is WINDOWS[-1] else ()

    def build(x: Any) -> Any:
        windowed = x.group_by_key().windowed_by(window).emit_strategy(emit)
        return windowed.aggregate(initializer, noted(function), *merging, value=value)

    check(build)


@pytest.mark.parametrize("window", [None, *WINDOWS], ids=lambda window: type(window).__name__)
def test_a_reducer_gets_values_and_aggregates_as_their_column_holds_them(window: Any) -> None:
    def build(x: Any) -> Any:
        grouped = x.map_values(lambda value: value, value="double").group_by_key()
        return (grouped if window is None else grouped.windowed_by(window)).reduce(reducing)

    check(build)


@pytest.mark.parametrize("window", [None, hopping(9, advance=3)], ids=["no window", "hopping"])
@pytest.mark.parametrize("name", ["int in a double", "rows"])
def test_aggregators_of_a_cogroup_get_aggregates_as_their_column_holds_them(name: str, window: Any) -> None:
    initializer, function, value = AGGREGATES[name]

    def build(x: Any) -> Any:
        one = x.group_by_key().cogroup(noted(function))
        both = one.cogroup(x.filter(lambda value: value > 1).group_by_key(), noted(function))
        return (both if window is None else both.windowed_by(window)).aggregate(initializer, value=value)

    check(build)


@pytest.mark.parametrize("name", ["int in a double", "rows", "tuple in JSON"])
def test_adder_and_subtractor_get_aggregates_as_their_column_holds_them(name: str) -> None:
    initializer, function, value = AGGREGATES[name]

    def build(x: Any) -> Any:
        grouped = x.to_table().group_by(lambda key, value: ("g", value))
        return grouped.aggregate(initializer, noted(function), noted(lambda value, found: found), value=value)

    check(build)


def test_functions_after_a_fold_get_its_results_as_their_column_holds_them() -> None:
    def build(x: Any) -> Any:
        table = x.group_by_key().aggregate(lambda: 0, lambda key, value, found: int(found) + value, value="double")
        return table.map_values(reading).filter(reading)

    check(build)


@pytest.mark.parametrize("emit", ["every", "last"])
@pytest.mark.parametrize(
    ("value", "first", "result", "text"),
    [
        ("long", 0, 2**70, "does not fit int64"),
        ("long", 0, 2.5, "does not fit int64"),
        ("string", "", 3, "does not fit string"),
        (ROWS, {"n": 0, "total": 0}, {"n": 1}, "returned no column total"),
        (ROWS, {"n": 0, "total": 0}, {"n": "a", "total": 1}, "does not fit the row's types"),
        (ROWS, {"n": 0, "total": 0}, {"n": 2**63, "total": 1}, "does not fit the row's types"),
        (ROWS, {"n": 0, "total": 0}, 3, "must return a dict of n, total"),
        ("json", 0, {1j}, "does not fit string"),
    ],
)
def test_a_result_that_does_not_fit_is_refused_at_its_record(
    value: Any, first: Any, result: Any, text: str, emit: Any
) -> None:
    # The next records delete the aggregate, which must not hide the first result.
    def aggregator(key: Any, value: Any, aggregate: Any) -> Any:
        return result if value == 1 else None

    topology = built(lambda x: x.group_by_key().aggregate(lambda: first, aggregator, value=value, emit=emit))
    with pytest.raises(UserFunctionError, match=text) as caught:
        TopologyTestDriver(topology).pipe_records(SCRIPT[::2])
    assert caught.value.offset == 0


def test_a_value_is_refused_at_its_record_if_only_finals_leave() -> None:
    def build(x: Any) -> Any:
        windowed = x.group_by_key().windowed_by(tumbling(9)).emit_strategy("on_window_close")
        return windowed.aggregate(lambda: 0, lambda key, value, _: "a" if value == 3 else value, value="long")

    with pytest.raises(UserFunctionError, match="'a' under key 'a' does not fit int64") as caught:
        TopologyTestDriver(built(build)).pipe_records(SCRIPT)
    assert caught.value.offset == 2


class Reads:
    """A processor that notes what its stores hold, and puts new values."""

    def init(self, context: Any) -> None:
        self.doubles, self.windows, self.rows = (context.store(name) for name in ("doubles", "windows", "rows"))
        self.versions, self.sessions = context.store("versions"), context.store("sessions")

    def process(self, record: Record) -> None:
        key, time_ms = record.key, record.timestamp
        seen(self.doubles.get(key), list(self.windows.fetch(key, 0, time_ms)), self.rows.get(key))
        newest = self.versions.get(key)
        seen(newest and newest.value, list(self.sessions.fetch(key)))
        self.doubles.put(key, int(record.value))
        self.windows.put(key, (record.value,), time_ms)
        self.rows.put(key, {"total": record.value, "n": True})
        self.versions.put(key, record.value > 1, time_ms)
        self.sessions.put(Windowed(key, time_ms, time_ms + 3), {"n": 1, "total": 1})


def test_a_processor_reads_from_its_stores_what_their_columns_hold() -> None:
    stores = [
        key_value_store("doubles", key="string", value="double"),
        window_store("windows", key="string", value="json", retention=30),
        key_value_store("rows", key="string", value=ROWS),
        versioned_store("versions", key="string", value="long", history=20),
        session_store("sessions", key="string", value=ROWS, retention=30),
    ]
    check(lambda x: x.process(Reads, stores=stores).to_table())


def test_a_value_that_does_not_fit_a_store_is_refused_at_its_record() -> None:
    class Puts:
        def init(self, context: Any) -> None:
            self.store = context.store("longs")

        def process(self, record: Record) -> None:
            self.store.put(record.key, "a" if record.value == 3 else record.value)

    stores = [key_value_store("longs", key="string", value="long")]
    topology = built(lambda x: x.process(Puts, stores=stores).to_table())
    with pytest.raises(
        UserFunctionError, match="the value for the store longs 'a' under key 'a' does not fit"
    ) as caught:
        TopologyTestDriver(topology).pipe_records(SCRIPT)
    assert caught.value.offset == 2
