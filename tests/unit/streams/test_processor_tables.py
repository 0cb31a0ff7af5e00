"""Tests of processors that read tables' stores, on all runners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams import (
    Record,
    StreamsBuilder,
    TestRecord,
    Topology,
    TopologyError,
    TopologyTestDriver,
    UserFunctionError,
    compile_topology,
    count,
    tumbling,
)
from millrace_streams import max as max_
from millrace_streams.compiler import stages_of
from millrace_streams.layout import OPAQUE_SHAPE
from millrace_streams.runners.packed_rows import Packed, from_batch
from millrace_streams.runners.worker import SourceRun, WorkerStage
from millrace_streams.steps.reader import Reader

from .test_state_packed import InPages
from .test_worker import Script, Variable, as_rows, batch_of, bounded, called, streamed, tables_of

TYPES = {"key": "string", "value": "long"}
STORES = {"stores": ["t"], "value": "string"}


class Reading:
    """A processor that forwards its key's row, and all rows."""

    def init(self, context: Any) -> None:
        self.context, self.table = context, context.store("t")

    def process(self, record: Record) -> None:
        rows = ",".join(f"{key}={value}" for key, value in self.table.all())
        self.context.forward(record.with_value(f"{self.table.get(record.key)} of {rows}"))


class ReadingVersions(Reading):
    """A processor that forwards the newest and an earlier row."""

    def process(self, record: Record) -> None:
        before = self.table.get(record.key, as_of=record.timestamp - 5)
        self.context.forward(record.with_value(f"{self.table.get(record.key)}, before {before}"))


def table(x: Any, y: Any) -> Any:
    y.to_table(store="t")
    return x.process(Reading, **STORES)


def counted(x: Any, y: Any) -> Any:
    y.group_by_key().count(store="t")
    return x.process(Reading, **STORES)


def named(x: Any, y: Any) -> Any:
    y.group_by_key().aggregate(n=count(), most=max_("value"), store="t")
    return x.process(Reading, **STORES)


def regrouped(x: Any, y: Any) -> Any:
    y.to_table().group_by(lambda key, value: (str(value % 2), value), key="string").count(store="t")
    return x.select_key(lambda key, value: str((value or 0) % 3), key="string").process(Reading, **STORES)


def filtered(x: Any, y: Any) -> Any:
    y.to_table().filter(lambda value: value > 2, store="t")
    return x.process(Reading, **STORES)


def versioned(x: Any, y: Any) -> Any:
    y.to_table(store="t", versioned=20)
    return x.process(ReadingVersions, **STORES)


def of_one_topic(x: Any, y: Any) -> Any:
    """Read a table on a branch before the table's, on one after it, and on the table's own."""
    before = x.map_values(lambda value: value)
    rows = x.to_table(store="t")
    after = x.map_values(lambda value: value)
    streams = [each.process(Reading, **STORES) for each in (before, rows.to_stream(), after)]
    return streams[0].merge(streams[1]).merge(streams[2])


BUILDS = (table, counted, named, regrouped, filtered, versioned, of_one_topic)
records = st.tuples(st.sampled_from(["a", "b", "c"]), st.none() | st.integers(0, 5), st.integers(0, 60))
scripts = st.lists(st.tuples(st.integers(0, 1), records), min_size=2, max_size=20)


def topology(build: Callable[[Any, Any], Any]) -> Topology:
    builder = StreamsBuilder()
    read = build(*(builder.stream(topic, **TYPES) for topic in ("in", "other")))
    read.to("results")
    read.to_delta("out")
    return builder.build()


def results(build: Any, batches: list[Script], kind: Any = TopologyTestDriver) -> list[Record]:
    driver = kind(topology(build))
    for batch in batches:
        driver.pipe_records([TestRecord(["in", "other"][topic], *record) for topic, record in batch])
    found: list[Record] = driver.read_records("results")
    return found


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
@settings(max_examples=6)
@given(script=scripts, cuts=st.sets(st.integers(1, 19), max_size=3))
def test_a_processor_reads_the_rows_as_of_its_record_in_batches_of_any_size_and_on_all_runners(
    build: Any, script: Script, cuts: set[int]
) -> None:
    edges = sorted({0, len(script), *(cut for cut in cuts if cut < len(script))})
    batches = [script[start:end] for start, end in pairwise(edges)]
    expected = results(build, [[record] for record in script])
    assert results(build, batches) == expected
    assert results(build, batches, InPages) == expected
    driver = TopologyTestDriver(topology(build))
    driver.pipe_records([TestRecord(["in", "other"][topic], *record) for topic, record in script])
    cut = stages_of(compile_topology(topology(build), dict.fromkeys(("in", "other"), OPAQUE_SHAPE)))
    for run in (streamed, bounded):
        assert as_rows(run(cut, batches)["out"]) == as_rows(driver.table("out"))


def test_a_table_stores_a_change_before_its_own_branch_and_after_earlier_ones() -> None:
    found = results(of_one_topic, [[(0, ("a", 1, 0)), (0, ("a", 2, 1))]])
    assert [record.value for record in found] == [
        "None of ", "1 of a=1", "1 of a=1", "1 of a=1", "2 of a=2", "2 of a=2"
    ]  # fmt: skip


def everywhere() -> Topology:
    builder = StreamsBuilder()
    builder.global_table("other", **TYPES, store="t")
    builder.stream("in", **TYPES).process(Reading, **STORES).to_delta("out")
    return builder.build()


def test_a_processor_reads_a_global_table_in_every_bucket() -> None:
    cut = stages_of(compile_topology(everywhere(), dict.fromkeys(("in", "other"), OPAQUE_SHAPE)))
    scripts = {"in": [("a", 1, 5), ("b", 2, 6)], "other": [("a", 3, 50), ("b", 4, 60)]}
    rows: list[Packed] = []
    for reader, prologue in zip(cut.plan.readers, cut.prologues, strict=True):
        read = Reader(reader.source, reader.layout, reader.operators)
        run = SourceRun(read, WorkerStage.of(cut, prologue, 1), 0, {0: 1})
        batch = batch_of(list(enumerate(scripts[reader.source.topic])), 0).drop_columns(["__sequence"])
        rows += [row for packed_rows in run(iter([batch])) for row in from_batch(packed_rows)]
    [stage] = cut.stages
    found = tables_of(cut, list(called(WorkerStage.of(cut, stage, 1), 0, rows, defaultdict(Variable))))
    assert found["out"].select("key", "value").rows() == [("a", "3 of a=3,b=4"), ("b", "4 of a=3,b=4")]


def test_records_of_a_global_table_do_not_advance_stream_time() -> None:
    class Ticking:
        def init(self, context: Any) -> None:
            context.schedule(10, "stream_time", lambda time_ms: context.forward("tick", f"{time_ms}"))

        def process(self, record: Record) -> None:
            pass

    builder = StreamsBuilder()
    rows = builder.global_table("other", **TYPES, store="t")
    stream = builder.stream("in", **TYPES)
    joined = stream.join(rows, lambda one, other: one, selector=lambda key, value: key)
    stream.process(Ticking, **STORES).merge(joined.process(Ticking, value="string")).to("out")
    topology = builder.build()
    assert "Sub-topology: 0 for global store (will not generate tasks)" in topology.describe()
    driver = TopologyTestDriver(topology)
    driver.pipe_records([TestRecord("other", "a", 1, 50), TestRecord("in", "a", 1, 3)])
    assert [record.value for record in driver.read_records("out")] == ["3", "3"]


def test_what_a_processor_cannot_read_is_refused() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TYPES)
    stream.to_table(store="rows")
    with pytest.raises(TopologyError, match="no store is named other; there are rows: add it with builder"):
        stream.process(Reading, stores=["other"])
    stream.group_by_key().windowed_by(tumbling(10)).count(store="t")
    stream.process(Reading, **STORES)
    with pytest.raises(TopologyError, match="the store t holds windows, and a processor reads only tables without"):
        builder.build()


def test_a_processor_cannot_write_a_table() -> None:
    class Writing(Reading):
        def process(self, record: Record) -> None:
            self.table.put(record.key, 1)

    builder = StreamsBuilder()
    builder.table("other", **TYPES, store="t")
    builder.stream("in", **TYPES).process(Writing, **STORES).to("out")
    with pytest.raises(
        UserFunctionError, match=r"the store t is a table's, which a processor only reads: .* no put\(\)"
    ):
        TopologyTestDriver(builder.build()).pipe_records([TestRecord("in", "a", 1, 0)])


def test_ranges_of_a_tables_rows_are_in_the_order_of_keys() -> None:
    class Ranges(Reading):
        def process(self, record: Record) -> None:
            rows = self.table
            found = [rows.range("b"), rows.reverse_range(high="b"), rows.prefix_scan("b")]
            self.context.forward(record.with_value(" ".join("".join(key for key, _ in each) for each in found)))
            assert rows.approximate_num_entries() == 3

    builder = StreamsBuilder()
    builder.table("other", **TYPES, store="t")
    builder.stream("in", **TYPES).process(Ranges, **STORES).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([*(TestRecord("other", key, 0, 0) for key in "cab"), TestRecord("in", "x", 0, 0)])
    assert [record.value for record in driver.read_records("out")] == ["bc ba b"]
