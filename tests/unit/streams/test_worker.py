"""Tests of the workers' code, against the test driver's results."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams import (
    IncompatibleStateError,
    StreamsBuilder,
    Suppressed,
    TestRecord,
    Topology,
    TopologyTestDriver,
    UserFunctionError,
    compile_topology,
    count,
    key_value_store,
    sessions,
    sliding,
    tumbling,
    within,
)
from millrace_streams.compiler import Plan, Stages, stages_of
from millrace_streams.graph import DeltaSinkNode
from millrace_streams.layout import OPAQUE_SHAPE
from millrace_streams.runners.dead_letters import DEAD_LETTERS
from millrace_streams.runners.output import newest_rows
from millrace_streams.runners.packed_rows import OUT, Packed, from_batch, to_batches
from millrace_streams.runners.packed_task import PackedTask
from millrace_streams.runners.worker import BoundedRun, SourceRun, WorkerStage
from millrace_streams.serdes import LONG, STRING
from millrace_streams.state.rows import Limits
from millrace_streams.steps.batch import TOMBSTONE, Batch
from millrace_streams.steps.reader import Reader

pytestmark = pytest.mark.slow

TYPES = {"key": "string", "value": "long"}
IN_PAGES = Limits(log_bytes=2_000, page_bytes=1_500, slot_ms=5)


class Deduplicate:
    """A processor that forwards the first record of each key and value."""

    def init(self, context: Any) -> None:
        self.context, self.seen = context, context.store("seen")

    def process(self, record: Any) -> None:
        if record.key is not None and self.seen.put_if_absent(record.key, record.value) is None:
            self.context.forward(record)


def windows(stream: Any) -> None:
    grouped = stream.group_by_key()
    sums = grouped.windowed_by(sessions(5, grace=20)).reduce(lambda one, other: (one or 0) + (other or 0), store="sums")
    sums.to_delta("sessions")
    counts = grouped.windowed_by(tumbling(10, grace=15)).count(store="counts")
    counts.filter(lambda number: number != 2).to_delta("not two")
    counts.suppress(Suppressed.until_window_closes()).to_stream().to_delta("finals")
    totals = grouped.windowed_by(sliding(7, grace=30)).aggregate(lambda: 0, lambda k, v, a: a + v, value="long")
    totals.to_delta("sliding")


def tables(stream: Any) -> None:
    table = stream.to_table(store="table")
    table.to_delta("table")
    table.join(stream.group_by_key().aggregate(n=count()), lambda value, row: value * row["n"]).to_delta("joined")
    stream.process(Deduplicate, stores=[key_value_store("seen", **TYPES)]).to_delta("distinct")


def two_topics(stream: Any, other: Any) -> None:
    table = other.to_table(store="table")
    stream.left_join(table, lambda left, right: (left or 0) * 10 + (right or 0)).to_delta("looked up")
    both = lambda left, right: (left or 0) * 100 + (right or 0)  # noqa: E731
    stream.outer_join(other, both, window=within(6, grace=3)).to_delta("pairs")
    stream.merge(other).group_by_key().reduce(lambda one, value: one * 2 + value).to_delta("merged")
    counts = [each.group_by_key().windowed_by(tumbling(10, grace=3)).count() for each in (stream, other)]
    finals = counts[0].outer_join(counts[1], both).suppress(Suppressed.until_window_closes())
    finals.to_stream().to_delta("joined finals")


def moved(stream: Any, other: Any) -> None:
    """Repartition records, join them with others that were not repartitioned, and repartition the result."""
    digits = stream.map(lambda key, value: (str((value or 0) % 3), value), key="string")
    digits.filter(lambda value: value != 4).to_delta("digits")
    table = other.map(lambda key, value: (str((value or 0) % 3), value), key="string").to_table(store="table")
    joined = digits.left_join(table, lambda left, right: (left or 0) * 10 + (right or 0))
    joined.to_delta("joined")
    counts = joined.group_by(lambda key, value: str(value % 4), key="string").count()
    counts.to_delta("counts")
    by_count = counts.group_by(lambda key, value: (f"{value}", value), key="string")
    by_count.reduce(lambda one, value: one + value, lambda one, value: one - value).to_delta("by count")
    both = lambda left, right: (left or 0) * 100 + (right or 0)  # noqa: E731
    digits.outer_join(other, both, window=within(9, grace=3)).to_delta("pairs")
    digits.merge(other).group_by_key().reduce(lambda one, value: one * 2 + value).to_delta("merged")


def asked(stream: Any, other: Any) -> None:
    """Build a foreign-key join of a table that another join also looks up."""
    left, right = stream.to_table(store="left"), other.to_table(store="right")
    wanted = lambda value: "abc"[value % 3]  # noqa: E731
    both = lambda one, two: one * 10 + (two or 0)  # noqa: E731
    joined = left.left_join(right, both, foreign_key=wanted, foreign_key_type="string")
    joined.to_delta("joined")
    joined.group_by(lambda key, value: (str(value % 10), value), key="string").count().to_delta("counts")
    left.join(right, lambda one, two: one * 100 + two).to_delta("by key")


def test_a_task_whose_rows_are_all_filtered_out_gives_no_rows() -> None:
    def build(stream: Any, other: Any) -> None:
        large = stream.filter(lambda value: value > 5)
        large.to_delta("large")
        large.map_values(lambda value: -value).merge(other).to_delta("both")

    cut = stages(build)
    for batches in ([[(0, ("a", 1, 0))]], [[(0, ("a", 1, 0)), (0, ("a", 6, 1))], [(0, ("a", 2, 2))]]):
        found = {name: frame.height for name, frame in streamed(cut, batches).items()}
        assert found == dict.fromkeys(["large", "both"], len(batches) - 1)


records = st.tuples(st.sampled_from(["a", "b", "c", None]), st.none() | st.integers(0, 5), st.integers(0, 60))
scripts = st.lists(st.tuples(st.integers(0, 1), records), min_size=2, max_size=20)
Script = list[tuple[int, tuple[Any, ...]]]
"""Records with the number of their topic."""
ONE_TOPIC = (windows, tables)


def topology(build: Callable[..., None]) -> Topology:
    builder = StreamsBuilder()
    topics = ["in"] if build in ONE_TOPIC else ["in", "other"]
    build(*(builder.stream(topic, **TYPES) for topic in topics))
    return builder.build()


def stages(build: Callable[..., None]) -> Stages:
    return stages_of(compile_topology(topology(build), {"in": OPAQUE_SHAPE, "other": OPAQUE_SHAPE}))


def packed(cut: Stages, script: Script, first: int, *, buckets: int = 1, puts_aside: bool = False) -> list[Packed]:
    """Return records of opaque topics as they are read. The sequence column has their order.

    The topics have as many partitions as there are ``buckets``.
    """
    found = []
    for number, (reader, prologue) in enumerate(zip(cut.plan.readers, cut.prologues, strict=True)):
        placed = [(first + place, record) for place, (topic, record) in enumerate(script) if topic == number]
        worker_stage = WorkerStage.of(cut, prologue, buckets, puts_aside=puts_aside)
        run = SourceRun(Reader(reader.source, reader.layout, reader.operators), worker_stage, 0, {})
        for partition in range(buckets):
            own = [(place, record) for place, record in placed if place % buckets == partition]
            found += [row for batch in run(iter([batch_of(own, partition)])) for row in from_batch(batch)]
    return found


def batch_of(placed: list[tuple[int, tuple[Any, ...]]], partition: int) -> pa.RecordBatch:
    script = [record for _, record in placed]
    places = pa.array([place for place, _ in placed], pa.int64())
    keys = [None if key is None else STRING.serialize(key) for key, _, _ in script]
    values = [None if value is None else LONG.serialize(value) for _, value, _ in script]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "__partition": pa.array([partition] * len(script), pa.int32()),
            "__offset": places,
            "__sequence": places,
            "__timestamp": pa.array([time * 1000 for _, _, time in script], pa.timestamp("us", tz="UTC")),
        }
    )


class Variable:
    """A state variable like Spark's.

    The variable is a list of rows of one column, or a map of such lists.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[bytes]] = []
        self.by_key: dict[tuple[Any, ...], tuple[bytes]] = {}

    def get(self) -> Iterator[tuple[bytes]]:
        return iter(self.rows)

    def put(self, rows: list[tuple[bytes]]) -> None:
        self.rows = list(rows)

    def appendValue(self, row: tuple[bytes]) -> None:  # noqa: N802 - Spark's name
        self.rows.append(row)

    def getValue(self, key: tuple[Any, ...]) -> tuple[bytes] | None:  # noqa: N802 - Spark's name
        return self.by_key.get(key)

    def updateValue(self, key: tuple[Any, ...], row: tuple[bytes]) -> None:  # noqa: N802 - Spark's name
        self.by_key[key] = row

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802 - Spark's name
        self.by_key.pop(key, None)


def streamed(cut: Stages, batches: list[Script]) -> dict[str, pl.DataFrame]:
    """Return the content of the stream's Delta tables after these micro-batches."""
    return tables_of(cut, stream_results(cut, batches))


def stream_results(cut: Stages, batches: list[Script], *, puts_aside: bool = False) -> list[Packed]:
    """Return the results of a stream."""
    return [row for rows in batch_results(cut, batches, puts_aside=puts_aside) for row in rows]


def batch_results(
    cut: Stages, batches: Iterable[Script], *, buckets: int = 1, puts_aside: bool = False, states: Any = None
) -> Iterator[list[Packed]]:
    """Return the results of a stream by micro-batch. Each micro-batch runs in new workers that have only the state."""
    states = defaultdict(Variable) if states is None else states
    worker_stages = [WorkerStage.of(cut, stage, buckets, puts_aside=puts_aside) for stage in cut.stages]
    first = 0
    for script in batches:
        rows = packed(cut, script, first, buckets=buckets, puts_aside=puts_aside)
        first += len(script)
        for worker_stage in worker_stages:
            rows = [
                row for bucket in {row.bucket for row in rows} for row in called(worker_stage, bucket, rows, states)
            ]
        assert sum(row.records for row in rows) == len(script)
        assert {row.stage for row in rows} == {OUT}
        yield rows


def delta_sinks(plan: Plan) -> list[DeltaSinkNode]:
    return [sink for sink in plan.sinks if isinstance(sink, DeltaSinkNode)]


def tables_of(cut: Stages, rows: list[Packed]) -> dict[str, pl.DataFrame]:
    """Return the Delta tables that results produce."""
    frames: dict[str, list[pl.DataFrame]] = {}
    for row in rows:
        if row.target:
            frames.setdefault(row.target, []).append(row.frame)
    return {sink.table: merged(cut.plan, sink, frames.get(sink.name, [])) for sink in delta_sinks(cut.plan)}


def called(worker_stage: WorkerStage, bucket: int, rows: list[Packed], states: Any) -> list[Packed]:
    """Return the output of a stage's processor for a bucket."""
    processor = PackedTask(worker_stage, IN_PAGES)
    number = worker_stage.stage.number
    handle = SimpleNamespace(
        getListState=lambda name, schema: states[number, bucket, name],
        getMapState=lambda name, key, schema: states[number, bucket, name],
    )
    processor.init(handle)
    own = iter([row._asdict() for row in rows if row.bucket == bucket])
    return [Packed(**row.asDict()) for row in processor.handleInputRows((bucket,), own, None)]


def merged(plan: Plan, sink: Any, frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows as MERGE and append leave them."""
    layout = plan.layouts[sink.name]
    if not frames:
        return pl.DataFrame()
    rows = newest_rows(pl.concat(frames), layout)
    return rows.filter(~pl.col(TOMBSTONE)).drop(TOMBSTONE) if TOMBSTONE in rows.columns else rows


def bounded(cut: Stages, batches: list[Script]) -> dict[str, pl.DataFrame]:
    """Return the content of the batch's Delta tables."""
    return tables_of(cut, bounded_results(cut, batches))


def bounded_results(cut: Stages, batches: list[Script], *, puts_aside: bool = False) -> list[Packed]:
    """Return the results of a batch."""
    rows, first = [], 0
    for script in batches:
        rows += packed(cut, script, first, puts_aside=puts_aside)
        first += len(script)
    for stage in cut.stages:
        rows.sort(key=lambda row: (row.bucket, row.sequence))
        run = BoundedRun(WorkerStage.of(cut, stage, 1, puts_aside=puts_aside))
        rows = [row for batch in run(to_batches(rows)) for row in from_batch(batch)]
    assert sum(row.records for row in rows) == first
    return rows


def as_rows(frame: pl.DataFrame) -> list[Any]:
    return sorted(frame.rows(), key=repr)


@pytest.mark.parametrize("build", [windows, tables, two_topics, moved, asked], ids=lambda build: build.__name__)
@settings(max_examples=8)
@given(script=scripts, cuts=st.sets(st.integers(1, 19), max_size=3))
def test_stream_and_batch_give_the_drivers_results(build: Callable[..., None], script: Script, cuts: set[int]) -> None:
    if build in ONE_TOPIC:
        script = [(0, record) for _, record in script]
    edges = sorted({0, len(script), *(cut for cut in cuts if cut < len(script))})
    batches = [script[start:end] for start, end in pairwise(edges)]
    driver = TopologyTestDriver(topology(build))
    driver.pipe_records([TestRecord(["in", "other"][topic], *record) for topic, record in script])
    for run in (streamed, bounded):
        for name, frame in run(stages(build), batches).items():
            assert as_rows(frame) == as_rows(driver.table(name)), name


def updates(stream: Any, other: Any) -> None:
    """Build joins and aggregates behind repartitions, with every update and with the last one of each batch."""
    digits = stream.map(lambda key, value: (str((value or 0) % 3), value), key="string")
    table = other.map(lambda key, value: (str((value or 0) % 3), value), key="string").to_table(store="table")
    digits.left_join(table, lambda left, right: (left or 0) * 10 + (right or 0)).to("joined")
    counts = digits.group_by_key().count()
    counts.to_stream().to("every")
    counts.group_by(lambda key, value: (str(value % 2), value)).reduce(
        lambda one, value: one + value, lambda one, value: one - value
    ).to_stream().to("regrouped")
    digits.group_by_key().aggregate(n=count(), emit="last").to_stream().to("last")


@pytest.mark.parametrize("buckets", [1, 3])
@settings(max_examples=10)
@given(script=scripts, cuts=st.sets(st.integers(1, 19), max_size=4))
def test_a_key_has_the_same_updates_for_any_micro_batches(buckets: int, script: Script, cuts: set[int]) -> None:
    edges = sorted({0, len(script), *(cut for cut in cuts if cut < len(script))})
    batches = [script[start:end] for start, end in pairwise(edges)]
    driver = TopologyTestDriver(topology(updates))
    driver.pipe_records([TestRecord(["in", "other"][topic], *record) for topic, record in script])
    found = updates_by_key(stages(updates), batches, buckets)
    for topic in ("joined", "every") if buckets > 1 else ("joined", "every", "regrouped"):
        expected: dict[Any, list[Any]] = defaultdict(list)
        for record in driver.read_records(topic):
            expected[record.key].append(record.value)
        assert {key: [value for _, value in rows] for key, rows in found[topic].items()} == expected, topic
    for key, rows in found["every"].items():
        last_of_batches = dict(rows)
        assert [(batch, row["n"]) for batch, row in found["last"][key]] == list(last_of_batches.items())


def updates_by_key(cut: Stages, batches: list[Script], buckets: int) -> dict[str, dict[Any, list[Any]]]:
    """Return the number of the micro-batch and the value of all results, by topic and key."""
    sinks = {node.name: node.topic for node in cut.plan.outputs}
    found: dict[str, dict[Any, list[Any]]] = {topic: defaultdict(list) for topic in sinks.values()}
    for number, rows in enumerate(batch_results(cut, batches, buckets=buckets)):
        for row in rows:
            if row.target:
                batch = Batch.of_frame(cut.plan.layouts[row.target], row.frame)
                for key, value in zip(batch.keys, batch.values, strict=True):
                    found[sinks[row.target]][key].append((number, value))
    return found


@pytest.mark.parametrize("where", ["where it is read", "in a stage"])
def test_failing_records_become_dead_letters_without_other_effects(where: str) -> None:
    def fails(value: Any) -> Any:
        if value == 3:
            raise ValueError("three")
        return value

    def build(stream: Any) -> None:
        if where == "in a stage":
            stream.group_by_key().reduce(lambda one, value: one + fails(value)).to_delta("sums")
        else:
            stream.map_values(fails).group_by_key().reduce(lambda one, value: one + value).to_delta("sums")

    script = [
        (0, (key, value, time))
        for time, (key, value) in enumerate(zip("abcabcab", [1, 2, 4, 3, 3, 5, 3, 6], strict=True))
    ]
    good = [record for record in script if record[1][1] != 3]
    builder = StreamsBuilder()
    build(builder.stream("in", **TYPES))
    cut = stages_of(compile_topology(builder.build(), {"in": OPAQUE_SHAPE}))
    driver = TopologyTestDriver(cut.plan.topology)
    driver.pipe_records([TestRecord("in", *record) for _, record in good])
    for results_of in (stream_results, bounded_results):
        rows = results_of(cut, [script], puts_aside=True)
        letters = pl.concat([row.frame for row in rows if row.target == DEAD_LETTERS]).sort("offset")
        assert letters.select("topic", "partition", "offset", "value").rows() == [
            ("in", 0, offset, LONG.serialize(3) if where == "where it is read" else b"3") for offset in (3, 4, 6)
        ]
        assert set(letters["node"]) == {cut.plan.topology.nodes[1].name}
        assert "raised ValueError: three (record of topic in, partition 0, offset 3" in letters["reason"][0]
        [sums] = tables_of(cut, rows).values()
        assert as_rows(sums) == as_rows(driver.table("sums"))


def fragile(fails: Callable[[int], bool], limit: int) -> Stages:
    """Build sums that skip failing values, and skip values by which a later sum would exceed a limit."""

    def add(one: int, value: int) -> int:
        if fails(value):
            raise ValueError(f"{value} in {one}")
        return one + value

    def checked(total: int) -> int:
        if total > limit:
            raise ValueError(f"{total} is too much")
        return total

    builder = StreamsBuilder()
    sums = builder.stream("in", **TYPES).group_by_key().reduce(add, store="sums")
    sums.to_stream().map_values(checked).to_delta("checked")
    return stages_of(compile_topology(builder.build(), {"in": OPAQUE_SHAPE}))


def letters_of(rows: list[Packed]) -> list[tuple[Any, ...]]:
    return [row for each in rows if each.target == DEAD_LETTERS for row in each.frame.select("offset", "reason").rows()]


@settings(max_examples=25)
@given(script=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=40))
def test_the_same_records_fail_as_one_by_one(script: list[tuple[str, int]]) -> None:
    # A record may fail, or not fail, because of an earlier record that is itself skipped.
    cut = fragile(lambda value: value in (3, 7), limit=15)
    placed = [(0, (key, value, place)) for place, (key, value) in enumerate(script)]
    expected = stream_results(cut, [[record] for record in placed], puts_aside=True)
    for results_of in (stream_results, bounded_results):
        found = results_of(cut, [placed], puts_aside=True)
        assert letters_of(found) == letters_of(expected)
        assert as_rows(tables_of(cut, found)["checked"]) == as_rows(tables_of(cut, expected)["checked"])


def test_any_number_of_records_can_fail() -> None:
    cut = fragile(lambda value: value % 10 == 3, limit=2**40)
    script = [(0, (f"{number % 7}", number, 0)) for number in range(14, 3_014)]
    rows = stream_results(cut, [script], puts_aside=True)
    assert [offset for offset, _ in letters_of(rows)] == list(range(9, 3_000, 10))
    assert sum(row.rows for row in rows if row.target == delta_sinks(cut.plan)[0].name) == 2_700
    assert len(letters_of(stream_results(cut, [[(0, ("a", 3, 0))] * 300], puts_aside=True))) == 299


def test_the_wall_clock_punctuates_with_the_next_records_of_a_bucket() -> None:
    class Ticking:
        def init(self, context: Any) -> None:
            self.context = context
            context.schedule(1, "wall_clock_time", lambda time_ms: context.forward("tick", 0, time_ms))

        def process(self, record: Any) -> None:
            self.context.forward(record)

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Ticking).to_delta("out")
    cut = stages_of(compile_topology(builder.build(), {"in": OPAQUE_SHAPE}))

    def scripts() -> Iterator[Script]:
        for number in range(2):
            yield [(0, ("a", number, number))]
            began_ms = time.time_ns() // 1_000_000
            while time.time_ns() // 1_000_000 <= began_ms + 1:
                pass

    rows = [[row.frame["key"].to_list() for row in rows if row.target] for rows in batch_results(cut, scripts())]
    assert rows == [[["a"]], [["tick", "a"]]]


def test_state_is_not_looked_for_in_other_buckets_than_it_was_put_in() -> None:
    states: dict[tuple[int, int, str], Variable] = defaultdict(Variable)
    script = [(0, ("a", number, number)) for number in range(4)]
    list(batch_results(stages(updates), [script], buckets=2, states=states))
    with pytest.raises(IncompatibleStateError, match="its state has 2 buckets, but the topology now has 3"):
        list(batch_results(stages(updates), [script], buckets=3, states=states))


def test_bytes_that_are_not_what_the_serde_says_are_named() -> None:
    plan = compile_topology(topology(tables), {"in": OPAQUE_SHAPE})
    frame = pl.DataFrame({"key": [b"a"], "value": [b"123"], "__offset": [41], "__timestamp": [0]})
    [reader] = plan.readers
    with pytest.raises(
        UserFunctionError, match="the value of the record at offset 41 of in-2 is not a valid long: unpack requires"
    ):
        Reader(reader.source, reader.layout, reader.operators).run(frame, 2)


def test_a_global_table_goes_before_all_other_records() -> None:
    # The times of the table's records do not matter. Here all are later than the records that look them up.
    builder = StreamsBuilder()
    table = builder.global_table("other", **TYPES, store="table")
    both = lambda left, right: left * 10 + right  # noqa: E731
    joined = builder.stream("in", **TYPES).join(table, both, selector=lambda key, _: key)
    joined.to_delta("joined")
    cut = stages_of(compile_topology(builder.build(), dict.fromkeys(("in", "other"), OPAQUE_SHAPE)))
    scripts = {"in": [("a", 1, 5), ("b", 2, 6)], "other": [("a", 3, 50), ("b", 4, 60)]}
    rows: list[Packed] = []
    for reader, prologue in zip(cut.plan.readers, cut.prologues, strict=True):
        run = SourceRun(
            Reader(reader.source, reader.layout, reader.operators), WorkerStage.of(cut, prologue, 1), 0, {0: 1}
        )
        batch = batch_of(list(enumerate(scripts[reader.source.topic])), 0).drop_columns(["__sequence"])
        rows += [row for packed_rows in run(iter([batch])) for row in from_batch(packed_rows)]
    [stage] = cut.stages
    worker_stage = WorkerStage.of(cut, stage, 1)
    results = list(called(worker_stage, 0, rows, defaultdict(Variable)))
    assert tables_of(cut, results)["joined"].select("key", "value").rows() == [("a", 13), ("b", 24)]
