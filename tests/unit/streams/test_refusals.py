"""Tests of refused topologies and failing functions.

The error names the node and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from millrace_streams import (
    BufferConfig,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TestRecord,
    TopologyError,
    TopologyTestDriver,
    UnknownColumnError,
    UserFunctionError,
    batchwise,
    col,
    compile_topology,
    count,
    key_value_store,
    row,
    sessions,
    tumbling,
    unlimited,
    window_store,
    within,
)
from millrace_streams import min as min_

TYPES = {"key": "string", "value": "long"}


def both(left: Any, right: Any) -> Any:
    return left


def table(b: StreamsBuilder, topic: str = "t", **types: Any) -> Any:
    return b.table(topic, **(TYPES | types))


def stream(b: StreamsBuilder, topic: str = "s", **types: Any) -> Any:
    return b.stream(topic, **(TYPES | types))


def after_default(b: StreamsBuilder) -> Any:
    branches = stream(b).split()
    branches.default_branch()
    return branches


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: b.stream("s", key="string"), "source of s: give the serdes of both key and value"),
        (
            lambda b: b.stream("s", key="text", value="long"),
            "'text' is not a serde: give one of string, bytes, integer",
        ),
        (lambda b: b.stream("s", key=pa.schema([("a", pa.int64())]), value="long"), "a single value is needed here"),
        (lambda b: b.stream("s", **TYPES, schema=pa.schema([])), "schema= is of a typed topic"),
        (lambda b: stream(b).join(stream(b, "r"), both), "two streams are joined within a window: give window=within"),
        (
            lambda b: stream(b).join(table(b), both, window=within(5)),
            "a join with a table has no window",
        ),
        (lambda b: stream(b).join(b.global_table("g", **TYPES), both), "selector=... is for joins with a global table"),
        (
            lambda b: stream(b).join(table(b), both, selector=lambda v: v),
            "selector=... is for joins with a global table",
        ),
        (lambda b: stream(b).join(table(b), lambda a: a), r"must take \(left, right\) or \(key, left, right\), not 1"),
        (lambda b: stream(b).outer_join(table(b), both, window=within(5)), "there is no such join with KTable"),
        (lambda b: table(b).join(stream(b), both), "a table is joined with a table, not with KStream"),
        (lambda b: stream(b).process(5), "give a class, or a function that makes processors, not 5"),
        (
            lambda b: stream(b).process(object, stores=["st"]),
            "no store is named st; there are none: add it with builder",
        ),
        (lambda b: stream(b).group_by_key().reduce(lambda v: v), r"must take \(aggregate, value\), not 1 parameters"),
        (
            lambda b: stream(b).group_by_key().aggregate(lambda: 0),
            "give initializer and aggregator, or named aggregates",
        ),
        (
            lambda b: stream(b).group_by_key().windowed_by(sessions(5)).aggregate(lambda: 0, lambda k, v, a: a),
            "merger=... is for session windows, which need it",
        ),
        (
            lambda b: stream(b).group_by_key().windowed_by(tumbling(5)).emit_strategy("never"),
            "'never': must be 'on_window_update' or 'on_window_close'",
        ),
        (lambda b: stream(b).group_by_key().cogroup(lambda v: v), r"must take \(key, value, aggregate\), not 1"),
        (lambda b: Suppressed.until_window_closes(BufferConfig.max_records(5)), "needs a strict buffer"),
        (lambda b: BufferConfig.max_records(-1), "a buffer of -1 records: the limit must not be negative"),
        (lambda b: JoinWindows(before_ms=-5, after_ms=4), "a join window from 5 to 4 ms is empty"),
        (lambda b: SlidingWindows(difference_ms=-1), "sliding windows of -1 ms: must not be negative"),
        (lambda b: SessionWindows(gap_ms=0), "sessions with a gap of 0 ms: the gap must be positive"),
        (lambda b: window_store("w", **TYPES, retention=0), "store w: a retention of 0 ms keeps nothing"),
        (
            lambda b: [b.add_state_store(key_value_store("st", **TYPES)) for _ in range(2)],
            "the store st was added already",
        ),
        (lambda b: tumbling("1 hour"), "'1 hour' is not a length of time: give a timedelta, or whole milliseconds"),
        (
            lambda b: stream(b).group_by_key().windowed_by(60_000),
            "windowed_by after KSTREAM-SOURCE-0000000000: 60000 is not allowed here: give tumbling",
        ),
        (
            lambda b: stream(b).group_by_key().cogroup(lambda k, v, a: a).windowed_by("hour"),
            "'hour' is not allowed here: give tumbling",
        ),
        (
            lambda b: stream(b).join(stream(b, "r"), both, window=60_000),
            r"inner join after KSTREAM-SOURCE-0000000000: 60000 is not allowed here: give window=within",
        ),
        (
            lambda b: stream(b).group_by_key().reduce(both, emit="newest"),
            "emit='newest': must be 'every' or 'last'",
        ),
        (lambda b: table(b).suppress("hour"), "'hour': give Suppressed.until_window_closes"),
        (
            lambda b: table(b).group_by("value").aggregate(n=count(), least=min_("value")),
            r"least=min\(value\): rows of a table can be deleted, and this aggregate cannot subtract a row",
        ),
        (
            lambda b: table(b).group_by("value").aggregate(lambda: 0, n=count()),
            "give initializer, adder and subtractor, or named aggregates such as n=count",
        ),
        (lambda b: unlimited(-5), "an unlimited window from -5 ms: must not be negative"),
        (lambda b: table(b, versioned=-1), "table of t: versioned of -1 ms: must not be negative"),
        (lambda b: stream(b).to_table(versioned=-1), "versioned of -1 ms: must not be negative"),
        (lambda b: stream(b).join(table(b, versioned=9), both, grace=-1), "grace of -1 ms: must not be negative"),
        (lambda b: after_default(b).branch(lambda v: v > 5), r"default_branch\(\) took all other records"),
        (lambda b: after_default(b).default_branch(name="rest"), r"rest: default_branch\(\) took all other records"),
        (lambda b: stream(b).process(object, stores="st"), "stores='st': give a list of stores"),
        (
            lambda b: table(b).join(table(b, "r"), both, foreign_key=col("value"), foreign_key_type="long"),
            "foreign_key_type= is only for a foreign key that is a function: cast",
        ),
    ],
)
def test_misuse_is_refused_where_it_is_written(build: Callable[[StreamsBuilder], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        build(StreamsBuilder())


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "..", None, "x" * 250])
def test_an_invalid_topic_is_refused(topic: Any) -> None:
    builder = StreamsBuilder()
    stream(builder).to(topic)
    with pytest.raises(TopologyError, match=r"KSTREAM-SINK-0000000001: .* cannot be a topic's name: letters, digits"):
        builder.build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda b: stream(b).to("s"),
            "KSTREAM-SINK-0000000001: the topology reads the topic s that it writes, which is a cycle: write",
        ),
        (
            lambda b: stream(b).join(table(b, key="long"), both).to("o"),
            r"KSTREAM-JOIN-0000000003: KSTREAM-SOURCE-0000000000 has the key \(key string\).*SOURCE-0000000002 has "
            r"the key \(key int64\).*: both keys must have the same types",
        ),
        (
            lambda b: table(b).join(table(b, "r", key="long"), both, foreign_key=lambda v: v).to_stream().to("o"),
            "the foreign key is string, but the key of KTABLE-SOURCE-0000000003 is int64: give the type",
        ),
        (
            lambda b: stream(b).merge(stream(b, "r", value="string")).to("o"),
            "merged streams need the same columns and key: select",
        ),
        (
            lambda b: b.stream("typed", schema=pa.schema([("a", pa.int64())])).to_table().to_stream().to("o"),
            "KSTREAM-TOTABLE|KTABLE-SOURCE-0000000001: the rows of a table need a key",
        ),
        (
            lambda b: table(b).suppress(Suppressed.until_window_closes()).to_stream().to("o"),
            "has no windows that could",
        ),
        (
            lambda b: (
                stream(b)
                .group_by_key()
                .windowed_by(unlimited())
                .count()
                .suppress(Suppressed.until_window_closes())
                .to_stream()
                .to("o")
            ),
            "an unlimited window never closes: suppress until_time_limit",
        ),
        (
            lambda b: (
                stream(b)
                .group_by_key()
                .windowed_by(tumbling(5))
                .count()
                .left_join(table(b), lambda number, right: number, foreign_key=lambda number: "a")
                .suppress(Suppressed.until_window_closes())
                .to_stream()
                .to("o")
            ),
            "the windows of records of KSTREAM-SOURCE-.* are not created here, so no grace tells when they close",
        ),
        (
            lambda b: (
                stream(b)
                .group_by_key()
                .windowed_by(tumbling(5))
                .count()
                .to_stream()
                .group_by_key()
                .windowed_by(tumbling(9))
                .count()
                .to_stream()
                .to("o")
            ),
            "has a window already: select_key",
        ),
        (
            lambda b: stream(b).join(table(b), both, grace=5).to("o"),
            r"KSTREAM-JOIN-\d+: grace=... is for joins with a versioned table: give the table versioned=",
        ),
        (
            lambda b: stream(b).join(table(b, versioned=9).filter(lambda v: v > 0), both, grace=10).to("o"),
            "records wait 10 ms, but the table keeps its versions for 9 ms: give it a longer history",
        ),
        (
            lambda b: stream(b).join(table(b, versioned=9).filter(lambda v: v > 0, store="st"), both, grace=9).to("o"),
            "is for joins with a versioned table",
        ),
        (lambda b: table(b).filter(col("value") + 1).to_stream().to("o"), "is bigint|is int64, not boolean"),
        (
            lambda b: stream(b).group_by("value").reduce(lambda one, other: one, store="m").to_stream().to("o"),
            r"the column value is both key and value: give the key another name, such as group_by",
        ),
        (
            lambda b: (
                b.stream("s", key="string", value=row(pa.schema([("a", pa.int64()), ("b", pa.int64())])))
                .select_key("a", "b")
                .select_key(lambda key, value: key)
                .to("o")
            ),
            "the type of the new key is unknown: give key='string'",
        ),
    ],
)
def test_nodes_that_do_not_fit_together_are_refused_by_the_compiler(
    build: Callable[[StreamsBuilder], Any], message: str
) -> None:
    builder = StreamsBuilder()
    build(builder)
    with pytest.raises(TopologyError, match=message):
        compile_topology(builder.build(), {})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda b: stream(b).group_by_key().aggregate(lambda: "", lambda k, v, a: f"{a}{v}", name="text"),
            "text: the initializer gives '', which does not fit value int64: give the type of the aggregate, value=",
        ),
        (
            lambda b: (
                table(b)
                .group_by(lambda k, v: (k, v))
                .aggregate(list, lambda k, v, a: [*a, v], lambda k, v, a: a, name="list")
            ),
            r"list: the initializer gives \[\], which does not fit value int64: give the type",
        ),
        (
            lambda b: stream(b).group_by_key().aggregate(dict, lambda k, v, a: a, value=row("n BIGINT"), name="rows"),
            r"rows: the initializer gives \{\}, which does not fit n int64",
        ),
        (
            lambda b: stream(b).group_by_key().aggregate(failing, lambda k, v, a: a, name="none"),
            "none: the initializer raised KeyError: 'broken'",
        ),
    ],
)
def test_initial_aggregates_of_another_type_are_refused(build: Callable[[StreamsBuilder], Any], message: str) -> None:
    builder = StreamsBuilder()
    build(builder).to_stream().to("o")
    with pytest.raises(TopologyError, match=message):
        compile_topology(builder.build(), {})


def test_errors_independent_of_the_topics_are_raised_at_build_time() -> None:
    declared, found = StreamsBuilder(), StreamsBuilder()
    stream(declared).filter(col("amount") > 1).to("o")
    with pytest.raises(UnknownColumnError, match="KSTREAM-FILTER-0000000001: no column amount in its input"):
        declared.build()
    # The columns of a typed topic are not known yet.
    found.stream("typed").filter(col("amount") > 1).to("o")
    assert found.build().sources[0].topic == "typed"


def failing(*arguments: Any) -> Any:
    raise KeyError("broken")


@pytest.mark.parametrize(
    ("build", "node"),
    [
        (lambda s, t: s.map(failing), "KSTREAM-MAP-"),
        (lambda s, t: s.flat_map_values(lambda value: failing()), "KSTREAM-MAPVALUES-"),
        (lambda s, t: s.select_key(lambda key, value: failing()), "KSTREAM-KEY-SELECT-"),
        (lambda s, t: s.peek(lambda key, value: failing()), "KSTREAM-PEEK-"),
        (lambda s, t: s.split().branch(lambda key, value: failing()), "KSTREAM-BRANCH-"),
        (lambda s, t: s.join(t, lambda left, right: failing()), "KSTREAM-JOIN-"),
        (lambda s, t: s.join(s, lambda left, right: failing(), window=within(5)), "KSTREAM-JOIN-"),
        (
            lambda s, t: s.group_by_key().aggregate(lambda: 0, lambda k, v, a: failing()).to_stream(),
            "KSTREAM-AGGREGATE-",
        ),
        (lambda s, t: s.to_table().filter(lambda value: failing()).to_stream(), "KTABLE-FILTER-"),
        (lambda s, t: s.to_table().map_values(lambda value: failing()).to_stream(), "KTABLE-MAPVALUES-"),
        (lambda s, t: s.to_table().join(t, lambda left, right: failing()).to_stream(), "KTABLE-JOIN-"),
        (lambda s, t: s.to_table().group_by(lambda k, v: failing()).count().to_stream(), "KTABLE-SELECT-"),
        (lambda s, t: s.to_table().join(t, both, foreign_key=lambda v: failing()).to_stream(), "KTABLE-FK-JOIN-"),
        (lambda s, t: s.process(lambda: Failing()), "KSTREAM-PROCESSOR-"),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_functions_failure_names_the_node_and_the_records_place(
    build: Callable[[Any, Any], Any], node: str, batch: int
) -> None:
    builder = StreamsBuilder()
    if node == "KSTREAM-MAP-":
        build = lambda s, t: s.map(lambda key, value: failing())  # noqa: E731
    build(stream(builder), table(builder)).to("o")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("t", "a", 1, 5)])
    records = [TestRecord("t", "b", 2, 6)] * (batch - 1) + [TestRecord("s", "a", 1, 7)]
    with pytest.raises(UserFunctionError, match="topic s, partition 0, offset 0, timestamp 7") as failure:
        driver.pipe_records(records)
    assert str(failure.value).startswith(node) or node in str(failure.value)


class Failing:
    def process(self, record: Any) -> None:
        failing()


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map_values(lambda value: value // (value - 2)).to("o"),
        lambda s: s.filter(lambda key, value: 1 // (value - 2) > 0).to("o"),
        lambda s: s.group_by_key().reduce(lambda one, other: other // (other - 2)).to_stream().to("o"),
        lambda s: s.group_by_key().windowed_by(tumbling(10)).reduce(lambda one, other: 1 // (other - 2)).to_delta("t"),
        lambda s: s.to_table().filter(lambda value: 1 // (value - 2) > 0).to_delta("t"),
        lambda s: s.to_table().group_by(lambda key, value: (key, 1 // (value - 2))).count().to_delta("t"),
        lambda s: s.join(s.to_table(), lambda left, right: left // (right - 2)).to("o"),
        lambda s: s.to_table().join(s.to_table(), lambda left, right: left // (right - 2)).to_delta("t"),
        lambda s: s.map_values(lambda value: "x" if value == 2 else value).to("o"),
        lambda s: s.map(lambda key, value: (5 if value == 2 else key, value)).to("o"),
        lambda s: s.group_by_key().reduce(lambda one, other: "x" if other == 2 else other).to_stream().to("o"),
    ],
)
def test_of_many_records_the_one_to_blame_is_named(build: Callable[[Any], Any]) -> None:
    builder = StreamsBuilder()
    build(stream(builder))
    driver = TopologyTestDriver(builder.build())
    values = [5, 1, 2, 4]
    with pytest.raises(UserFunctionError, match="topic s, partition 0, offset 2, timestamp 12") as failure:
        driver.pipe_records([TestRecord("s", "a", value, 10 + place) for place, value in enumerate(values)])
    error = failure.value
    assert (error.topic, error.partition, error.offset) == ("s", 0, 2)
    assert str(error).startswith(f"{error.node}: ")


def test_a_function_over_a_batch_names_the_first_record_and_how_many_there_were() -> None:
    builder = StreamsBuilder()
    stream(builder).map_values(batchwise(lambda frame: failing())).to("o")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(
        UserFunctionError, match=r"\(batch of 2 records, this is the first\) \(record of topic s, .*offset 0"
    ):
        driver.pipe_records([TestRecord("s", "a", 1, 5), TestRecord("s", "b", 1, 5)])


def test_a_processor_that_cannot_begin_is_named() -> None:
    builder = StreamsBuilder()
    stream(builder).process(lambda: failing(), name="mine").to("o")
    with pytest.raises(UserFunctionError, match=r"mine: the processor's beginning raised KeyError: 'broken' \(no"):
        TopologyTestDriver(builder.build())


def test_nodes_of_two_builders_are_not_combined() -> None:
    one, other = StreamsBuilder(), StreamsBuilder()
    for build in (
        lambda: stream(one).merge(stream(other)),
        lambda: stream(one).join(table(other), both, name="lookup"),
        lambda: table(one).join(table(other), both),
    ):
        with pytest.raises(TopologyError, match="belong to two builders: build both with one StreamsBuilder"):
            build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.map_values(lambda value: "x"), "the function's result 'x' under key 'a' does not fit int64"),
        (lambda s: s.map(lambda key, value: (5, value)), "KSTREAM-MAP-.*under key 5 does not fit"),
        (lambda s: s.group_by_key().reduce(lambda a, v: "x").to_stream(), "KSTREAM-AGGREGATE-.*'x' under key 'a'"),
        (lambda s: s.to_table().map_values(lambda value: 1.5).to_stream(), "KTABLE-MAPVALUES-.*1.5 under key 'a'"),
    ],
)
def test_results_of_another_type_are_refused(build: Callable[[Any], Any], message: str) -> None:
    builder = StreamsBuilder()
    build(stream(builder)).to("o")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserFunctionError, match=message):
        driver.pipe_records([TestRecord("s", "a", 1, 0), TestRecord("s", "a", 2, 0)])


def test_records_of_another_type_are_refused() -> None:
    builder = StreamsBuilder()
    stream(builder).group_by_key().aggregate(n=count()).to_stream().to("o")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserFunctionError, match=r"records of s\): the value 'x' under key 'a'"):
        driver.pipe_records([TestRecord("s", "a", "x", 0)])
