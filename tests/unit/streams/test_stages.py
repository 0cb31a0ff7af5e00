"""Tests of a plan's stages.

The tests check the nodes on the source or a stage, and the records that are sent between stages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace_streams import (
    StreamsBuilder,
    TestRecord,
    TopologyTestDriver,
    UnsupportedTopologyError,
    compile_topology,
    key_value_store,
    tumbling,
    within,
)
from millrace_streams.compiler import Stages, stages_of
from millrace_streams.steps.task import Steps

TYPES = {"key": "string", "value": "long"}


def cut(build: Callable[..., None], *topics: str) -> Stages:
    builder = StreamsBuilder()
    build(*(builder.stream(topic, **TYPES) for topic in topics or ("x",)))
    return stages_of(compile_topology(builder.build(), {}))


def kinds(stages: Stages) -> dict[int, list[str]]:
    return {
        stage.number: [type(operator.node).__name__.removesuffix("Node") for operator in stage.operators]
        for stage in stages.stages
    }


def sent(stages: Stages) -> list[tuple[int, int, str]]:
    """Return from which stage (-1 for the source) records are sent to which stage, and how."""
    every = [*stages.prologues, *stages.stages]
    return sorted((stage.number, send.stage, send.way) for stage in every for send in stage.sends)


def add(one: int, other: int) -> int:
    return one + other


def by_value(key: str, value: int) -> tuple[str, int]:
    return str(value), value


def test_a_repartition_after_stateless_operators_needs_no_stage_of_its_own():
    stages = cut(lambda x: x.flat_map_values(lambda value: [value]).map(by_value).group_by_key().count().to_delta("t"))
    assert kinds(stages) == {1: ["Aggregate", "DeltaSink"]}
    assert sent(stages) == [(-1, 1, "key")]


def test_without_state_all_runs_where_the_source_is_read():
    stages = cut(lambda x: x.filter(lambda value: value > 1).map(by_value).to("out"))
    assert kinds(stages) == {}
    assert sent(stages) == []


def test_an_aggregate_by_the_topics_key_stays_in_its_partition_and_its_regrouping_is_a_stage():
    def build(x: Any) -> None:
        counts = x.group_by_key().count()
        counts.group_by(by_value, key="string").reduce(add, lambda one, other: one - other).to_delta("t")

    stages = cut(build)
    assert kinds(stages) == {0: ["Aggregate", "GroupTable", "Repartition"], 1: ["TableFold", "DeltaSink"]}
    assert sent(stages) == [(-1, 0, "partition"), (0, 1, "key")]


def test_a_table_is_sent_to_the_stage_of_its_lookups():
    def build(x: Any, y: Any) -> None:
        x.map(by_value).join(y.to_table(store="s"), add).to_delta("t")

    stages = cut(build, "x", "y")
    assert kinds(stages) == {1: ["ToTable", "StreamTableJoin", "DeltaSink"]}
    assert sent(stages) == [(-1, 1, "key"), (-1, 1, "key")]


def test_a_table_that_two_stages_need_is_materialized_in_both():
    def build(x: Any, y: Any) -> None:
        table = y.to_table(store="s")
        x.join(table, add).map(by_value).join(table, add).to_delta("t")

    stages = cut(build, "x", "y")
    assert kinds(stages)[1] == ["Materialize", "StreamTableJoin", "DeltaSink"]
    copy, join, _ = stages.stages[1].operators
    assert join.reads[1] == copy.node.stores[0] != "s"
    assert sent(stages) == [(-1, 0, "partition"), (-1, 0, "partition"), (0, 1, "key"), (0, 1, "key")]


def test_streams_joined_by_key_are_partitioned_by_the_same_hash_or_none():
    def build(x: Any, y: Any) -> None:
        x.join(y, add, window=within(5)).to_delta("unmoved")
        x.map(by_value).outer_join(y, lambda one, other: 1, window=within(5)).to_delta("moved")

    stages = cut(build, "x", "y")
    assert kinds(stages) == {0: ["StreamStreamJoin", "DeltaSink"], 1: ["StreamStreamJoin", "DeltaSink"]}


def test_a_global_table_is_on_every_stage_that_looks_at_it():
    builder = StreamsBuilder()
    table = builder.global_table("g", **TYPES)
    x = builder.stream("x", **TYPES).join(table, add, selector=lambda key, value: key)
    x.map(by_value).group_by_key().count().to_stream().join(table, add, selector=lambda key, value: key).to_delta("t")
    stages = stages_of(compile_topology(builder.build(), {}))
    assert [names.count("ToTable") for names in kinds(stages).values()] == [1, 1]
    assert [way for _, _, way in sent(stages)].count("all") == 2


def test_processors_of_several_stages_cannot_share_a_store():
    class Keep:
        def process(self, record: Any) -> None:
            """Do nothing."""

    def build(x: Any) -> None:
        store = key_value_store("s", **TYPES)
        x.process(Keep, stores=[store], name="early").map(by_value).repartition().process(
            Keep, stores=[store], name="late"
        ).to_delta("t")

    with pytest.raises(UnsupportedTopologyError, match="late: it shares the store s with early, but records move"):
        cut(build)


def test_windowed_counts_of_a_moved_stream_are_one_stage():
    def build(x: Any) -> None:
        x.map(by_value).group_by_key().windowed_by(tumbling(5)).count().to_stream().to("out")

    assert kinds(cut(build)) == {1: ["Aggregate", "ToStream", "TopicSink"]}


def stage_with(stages: Stages, name: str) -> tuple[int, frozenset[str]]:
    """Return the stage of a processor, and the nodes whose records advance its stream time."""
    plan = stages.plan
    [stage] = [each for each in stages.stages if name in {operator.node.name for operator in each.operators}]
    received = [send.node for send in stage.receives]
    steps = Steps.of(stage.operators, stages.forks, plan.repartition_numbers, plan.subtopologies, received)
    return stage.number, steps.entries[name]


def test_sources_and_repartitions_of_a_subtopology_make_up_the_stream_time_of_one_task():
    class Keep:
        def process(self, record: Any) -> None:
            """Do nothing."""

    def build(x: Any, y: Any, z: Any) -> None:
        moved = x.map(by_value).repartition()
        x.group_by_key().count(column="value").to_stream().to_delta("counts")
        z.group_by_key().count(column="value").to_stream().to_delta("others")
        y.process(Keep, name="keeps").to_delta("kept")
        moved.merge(y).merge(x).to_delta("all")

    stages = cut(build, "x", "y", "z")
    x, y, _ = (prologue.head for prologue in stages.prologues)
    [moved] = stages.plan.repartition_numbers
    assert stage_with(stages, "keeps") == (1, {x, y, moved})


def test_a_source_that_only_a_later_stage_reads_advances_the_stream_time_of_a_processor():
    class Keep:
        def process(self, record: Any) -> None:
            """Do nothing."""

    def build(x: Any, y: Any, z: Any) -> None:
        counts = y.map(by_value).group_by_key().count(column="value")
        y.process(Keep, name="keeps").to_delta("kept")
        y.merge(x.join(counts, add)).to_delta("joined")
        z.map_values(int).to_delta("others")

    stages = cut(build, "x", "y", "z")
    x, y, z = (prologue.head for prologue in stages.prologues)
    [moved] = stages.plan.repartition_numbers
    assert stage_with(stages, "keeps") == (1, {x, y, moved})
    assert [(send.way, send.stage) for send in stages.prologues[0].sends] == [("key", 1)]
    assert z not in {send.node for stage in stages.stages for send in stage.receives}


class Tick:
    """A processor that forwards the times of its punctuations."""

    def init(self, context: Any) -> None:
        context.schedule(10, "stream_time", lambda time_ms: context.forward("tick", time_ms))

    def process(self, record: Any) -> None:
        """Do nothing."""


@pytest.mark.parametrize("processor_first", [False, True])
def test_a_processor_has_the_stream_time_of_repartitioned_records_that_never_reach_it(processor_first: bool):
    def build(x: Any, y: Any) -> None:
        if processor_first:
            y.process(Tick, name="ticks").to("ticks")
        moved = x.map(by_value).repartition()
        if not processor_first:
            y.process(Tick, name="ticks").to("ticks")
        moved.merge(y).to("all")

    stages = cut(build, "x", "y")
    _, y = (prologue.head for prologue in stages.prologues)
    [moved] = stages.plan.repartition_numbers
    assert stage_with(stages, "ticks") == (1, {y, moved})
    driver = TopologyTestDriver(stages.plan.topology)
    driver.pipe_records([TestRecord("y", "a", 1, 0)])
    driver.pipe_records([TestRecord("x", "b", 2, 25)])
    assert [record.value for record in driver.read_records("ticks")] == [0, 25]


def test_of_two_processors_that_depend_on_each_other_the_first_has_the_stream_time_of_both():
    def build(x: Any, y: Any) -> None:
        one = x.process(Tick, name="one")
        two = y.process(Tick, name="two")
        one.map(by_value).repartition("one").merge(y).to("first")
        two.map(by_value).repartition("two", name="moved").merge(x).to("second")

    stages = cut(build, "x", "y")
    x, y = (prologue.head for prologue in stages.prologues)
    assert stage_with(stages, "one") == (1, {x, "moved"})
    assert stage_with(stages, "two") == (0, {y})
