"""Tests of a topology as text, and of refusals.

A refusal names the node.
"""

from datetime import timedelta
from unittest import mock

import pyarrow as pa
import pytest

from millrace_streams import (
    StreamsBuilder,
    TopicShape,
    TopologyError,
    UnknownColumnError,
    batchwise,
    col,
    compile_topology,
    count,
    hopping,
    key_value_store,
    lit,
    mean,
    tumbling,
)
from millrace_streams import sum as sum_
from millrace_streams.graph import SourceNode, Topology
from millrace_streams.layout import OPAQUE_SHAPE
from millrace_streams.runners.source import Job, JobInputs
from millrace_streams.windows import TimeWindows

FLIGHTS = TopicShape(
    schema=pa.schema(
        [
            pa.field("origin", pa.string(), nullable=False),
            ("carrier", pa.string()),
            ("dep_delay", pa.float64()),
            ("time_hour", pa.timestamp("us", tz="UTC")),
        ]
    ),
    key_columns=("origin",),
)


def compile_flights(topology: Topology):
    return compile_topology(topology, {"flights": FLIGHTS})


def departures() -> Topology:
    builder = StreamsBuilder()
    flights = builder.stream("flights", timestamp="time_hour").filter(col("dep_delay").is_not_null())
    hours = flights.group_by("origin").windowed_by(tumbling(timedelta(hours=1)))
    hours.aggregate(departures=count(), mean_delay=mean("dep_delay")).to_delta("hourly")
    return builder.build()


def test_describe_is_in_the_form_of_kafka_streams():
    assert (
        departures().describe()
        == """Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [flights])
      --> KSTREAM-FILTER-0000000001
    Processor: KSTREAM-FILTER-0000000001 (stores: [])
      --> KSTREAM-KEY-SELECT-0000000002
      <-- KSTREAM-SOURCE-0000000000
    Processor: KSTREAM-KEY-SELECT-0000000002 (stores: [])
      --> KSTREAM-AGGREGATE-0000000004
      <-- KSTREAM-FILTER-0000000001
    Processor: KSTREAM-AGGREGATE-0000000004 (stores: [KSTREAM-AGGREGATE-STATE-STORE-0000000003])
      --> DELTA-SINK-0000000005
      <-- KSTREAM-KEY-SELECT-0000000002
    Sink: DELTA-SINK-0000000005 (delta table: hourly)
      <-- KSTREAM-AGGREGATE-0000000004
"""
    )


def test_unconnected_parts_are_sub_topologies_of_their_own():
    builder = StreamsBuilder()
    builder.stream("a").to("b")
    builder.stream("c").to("d")
    text = builder.build().describe()
    assert "Sub-topology: 0\n    Source: KSTREAM-SOURCE-0000000000 (topics: [a])" in text
    assert "Sub-topology: 1\n    Source: KSTREAM-SOURCE-0000000002 (topics: [c])" in text


def test_names_are_the_users_where_given():
    builder = StreamsBuilder()
    builder.stream("in", name="read").filter(col("x") > 1, name="large").group_by_key().count(
        store="n", name="n"
    ).to_delta("t")
    topology = builder.build()
    assert [node.name for node in topology.nodes] == ["read", "large", "n", "DELTA-SINK-0000000000"]
    assert topology.stores == ("n",)
    assert topology.node("large").parents == ("read",)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: b.stream("in"), "the topology has no result"),
        (lambda b: None, "the topology reads no topic"),
        (lambda b: [b.stream("in", name="x").to("a", name="x")], "x: the name is used twice"),
        (lambda b: [(s := b.stream("in")).to_delta("t"), s.to_delta("t")], "two sinks write to the same Delta table"),
        (
            lambda b: [
                (g := b.stream("in").group_by_key()).count(store="s").to_delta("t"),
                g.count(store="s").to_delta("u"),
            ],
            "the store s is used twice",
        ),
        (
            lambda b: [
                (g := b.stream("in").group_by_key()).count(store="by.hour", name="one").to_delta("t"),
                g.count(store="by-hour", name="other").to_delta("u"),
            ],
            "other: its store by-hour and by.hour of one differ only in punctuation",
        ),
        (
            lambda b: b.stream("in").group_by_key().count(store="-s", name="n").to_delta("t"),
            "n: a store cannot be named '-s' in Spark's state store: begin with a letter",
        ),
        (
            lambda b: b.stream("in").group_by_key().count(store="default").to_delta("t"),
            "a store cannot be named 'default'",
        ),
    ],
)
def test_an_invalid_topology_is_refused(build, message):
    builder = StreamsBuilder()
    build(builder)
    with pytest.raises(TopologyError, match=message):
        builder.build()


def test_a_node_before_its_parent_is_refused():
    with pytest.raises(TopologyError, match="b: its parent a is not a node before it"):
        Topology((SourceNode(name="b", topic="t", parents=("a",)),))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.select(), "select after KSTREAM-SOURCE-0000000000: name at least one column"),
        (lambda s: s.select("a", a=1), "a column is named twice in a, a"),
        (lambda s: s.select(name=col("a")), r"for a column of that name write expression.alias\('name'\)"),
        (lambda s: s.select(col("a") + 1), "has no name: write name=expression"),
        (lambda s: s.filter("a > 1"), "neither an expression nor a function"),
        (lambda s: s.filter(lambda a, b, c: True), r"must take \(value\) or \(key, value\), not 3"),
        (lambda s: s.map_values(len, a=col("a")), "give a function with value="),
        (lambda s: s.group_by_key().aggregate(), "give at least one aggregate"),
        (lambda s: s.group_by_key().aggregate(n=5), "n=5 is not an aggregate"),
        (lambda s: s.group_by_key().count(emit="all"), "emit='all': must be 'every' or 'last'"),
    ],
)
def test_misuse_of_the_language_is_refused_at_once(build, message):
    with pytest.raises(TopologyError, match=message):
        build(StreamsBuilder().stream("in"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tumbling(0), "the size must be positive"),
        (lambda: hopping(10, advance=20), "the advance must be positive and at most the size"),
        (lambda: tumbling(10, grace=-1), "grace of -1 ms: must not be negative"),
        (lambda: tumbling(10).retain(5), "retention of 5 ms is shorter than window and grace"),
        (lambda: tumbling(timedelta(microseconds=1500)), "not a whole number of milliseconds"),
    ],
)
def test_windows_that_make_no_sense_are_refused(build, message):
    with pytest.raises(TopologyError, match=message):
        build()


def test_windows_say_what_they_are():
    assert str(tumbling(10).grace(5)) == "tumbling 10 ms, grace 5 ms"
    assert str(tumbling(10).advance_by(2)) == "hopping every 2 ms, 10 ms, grace 0 ms"
    assert tumbling(10, grace=5) == TimeWindows(size_ms=10, advance_ms=10, grace_ms=5, retention_ms=15)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (
            lambda s: s.filter(col("delay") > 1).to("out"),
            UnknownColumnError,
            "KSTREAM-FILTER-0000000001: no column delay in its input; the columns are origin, carrier, dep_delay",
        ),
        (lambda s: s.filter(col("dep_delay") + 1).to("out"), TopologyError, "is double, not boolean"),
        (lambda s: s.select(x=col("origin") & True).to("out"), TopologyError, "KSTREAM-MAPVALUES-0000000001: the expr"),
        (lambda s: s.select(x=lit(None)).to("out"), TopologyError, "x is always null and has no type: cast it"),
        (lambda s: s.with_columns(origin=lit("x")).to("out"), TopologyError, "origin is part of the key"),
        (lambda s: s.select(__x=col("origin")).to("out"), TopologyError, "the column name __x is reserved"),
        (lambda s: s.group_by("dest").count().to_delta("t"), UnknownColumnError, "no column dest in its input"),
        (
            lambda s: s.group_by_key().aggregate(s=sum_("carrier")).to_delta("t"),
            TopologyError,
            r"KSTREAM-AGGREGATE-0000000002: s=sum\(carrier\): a number is needed, not string",
        ),
        (
            lambda s: s.group_by_key().windowed_by(tumbling(5)).aggregate(window_start=count()).to_delta("t"),
            TopologyError,
            "the column name window_start is taken or reserved",
        ),
        (
            lambda s: s.map_values(lambda v: v, schema=pa.schema([("origin", pa.string())])).to("out"),
            TopologyError,
            "the schema has no column beside the key's",
        ),
    ],
)
def test_a_node_that_does_not_fit_the_schema_is_named(build, error, message):
    builder = StreamsBuilder()
    build(builder.stream("flights"))
    with pytest.raises(error, match=message):
        compile_flights(builder.build())


def test_event_time_must_be_a_time():
    builder = StreamsBuilder()
    builder.stream("flights", timestamp="carrier").to("out")
    with pytest.raises(TopologyError, match="event time from carrier: needs a timestamp or ms since 1970, not string"):
        compile_flights(builder.build())


def test_an_unknown_schema_is_refused():
    builder = StreamsBuilder()
    builder.stream("other").to("out")
    with pytest.raises(TopologyError, match="the schema of topic other is not known: declare it with schema="):
        compile_topology(builder.build(), {})


def test_records_without_a_key_cannot_be_grouped_by_it():
    builder = StreamsBuilder()
    builder.stream("in", schema=pa.schema([("x", pa.int64())])).group_by_key().count().to_delta("t")
    with pytest.raises(TopologyError, match="the records have no key: group_by"):
        compile_topology(builder.build(), {})


def test_a_table_is_not_a_stream():
    builder = StreamsBuilder()
    table = builder.stream("flights").group_by_key().count()
    assert not hasattr(table, "select_key")
    table.to_stream().filter(col("count") > 2).to("out")
    assert compile_flights(builder.build()).layouts["KTABLE-TOSTREAM-0000000003"].key == ("origin",)


def test_topics_that_meet_before_their_records_moved_must_have_as_many_partitions():
    def prepare(build, *, global_tables=()):
        builder = StreamsBuilder()
        holds = {"schema": FLIGHTS.schema, "key_columns": ["origin"]}
        streams = [builder.stream(topic, **holds) for topic in ("few", "many")]
        build(*streams, *(builder.global_table(topic, **holds) for topic in global_tables))
        partitions = {"few": (FLIGHTS, 1), "many": (FLIGHTS, 3), "planes": (FLIGHTS, 2)}
        with mock.patch.object(JobInputs, "shape_of", side_effect=lambda topic, key: partitions[topic]):
            return Job.prepare(builder.build(), JobInputs(bootstrap_servers="nowhere:1"))

    def alike(few, many):
        few.merge(many).group_by_key().count().to_delta("t")

    def joined(few, many):
        many.filter(col("carrier") == "AA").join(few.to_table(), lambda left, right: left).to("out")

    def sharing(few, many):
        store = key_value_store("shared", key="string", value="long")
        for stream in (few, many):
            stream.process(object, stores=[store], key="string")

    with pytest.raises(TopologyError, match="KSTREAM-MERGE-0000000002: many has 3 partitions, but few has 1, and"):
        prepare(alike)
    with pytest.raises(TopologyError, match="KSTREAM-JOIN-0000000004: few has 1 partitions, but many has 3, and"):
        prepare(joined)
    with pytest.raises(TopologyError, match="KSTREAM-PROCESSOR-0000000003: few has 1 partitions, but many has 3"):
        prepare(sharing)
    assert prepare(lambda few, many: few.repartition().merge(many).group_by_key().count().to_delta("t")).buckets == 3

    def apart(few, many, planes):
        for name, stream in (("few", few), ("many", many)):
            joined = stream.join(planes, lambda left, right: left, selector=col("carrier"))
            joined.group_by_key().count().to_delta(name)

    # Inputs that never meet, or meet only in a global table, may have any numbers of partitions.
    assert prepare(apart, global_tables=["planes"]).buckets == 3


def test_only_the_columns_that_count_are_read():
    plan = compile_flights(departures())
    assert plan.readers[0].columns == ("origin", "dep_delay", "time_hour")
    builder = StreamsBuilder()
    builder.stream("flights").with_columns(a=col("dep_delay") + 1, b=col("carrier")).group_by("origin").aggregate(
        s=sum_("a")
    ).to_delta("t")
    assert compile_flights(builder.build()).readers[0].columns == ("origin", "dep_delay")


def test_functions_get_all_columns():
    builder = StreamsBuilder()
    builder.stream("flights").filter(batchwise(lambda frame: frame["dep_delay"] > 1)).group_by_key().count().to_delta(
        "t"
    )
    assert compile_flights(builder.build()).readers[0].columns == tuple(FLIGHTS.schema.names)


def test_the_stateless_chain_after_the_source_runs_in_the_reader():
    plan = compile_flights(departures())
    assert [operator.node.name for operator in plan.readers[0].operators] == [
        "KSTREAM-FILTER-0000000001",
        "KSTREAM-KEY-SELECT-0000000002",
    ]
    assert plan.readers[0].head == "KSTREAM-KEY-SELECT-0000000002"
    builder = StreamsBuilder()
    stream = builder.stream("flights").filter(col("dep_delay") > 1)
    stream.filter(col("carrier") == "AA").to("a")
    stream.filter(col("carrier") == "UA").to("b")
    plan = compile_flights(builder.build())
    assert [operator.node.name for operator in plan.readers[0].operators] == ["KSTREAM-FILTER-0000000001"]


@pytest.mark.parametrize(
    ("group", "moves"),
    [
        (lambda s: s.group_by("origin"), False),
        (lambda s: s.group_by("carrier", "origin"), False),
        (lambda s: s.group_by("carrier"), True),
        (lambda s: s.group_by(origin=col("origin").upper()), True),
        (lambda s: s.group_by("carrier").aggregate(n=count()).to_stream().group_by("carrier"), True),
        (lambda s: s.select_key("carrier").select("dep_delay").group_by_key(), True),
    ],
)
def test_records_move_only_where_the_bucket_is_not_decided(group, moves):
    builder = StreamsBuilder()
    group(builder.stream("flights")).count(column="total").to_delta("t")
    assert bool(compile_flights(builder.build()).repartitions) == moves


@pytest.mark.parametrize(
    ("group", "moves"),
    [
        (lambda s: s.group_by("origin"), 0),
        (lambda s: s.group_by("carrier", "origin"), 1),
        (lambda s: s.repartition().group_by("carrier", "origin"), 1),
        (lambda s: s.group_by("origin").count(column="n").to_stream().group_by("origin", "n"), 0),
        (lambda s: s.to_table().to_stream().group_by("carrier", "origin"), 0),
        (lambda s: s.merge(s.filter(col("dep_delay") > 1)).group_by("carrier", "origin"), 1),
    ],
)
def test_records_without_a_topics_key_move_if_the_new_key_has_more_columns(group, moves):
    # Producers spread records with a null origin over all partitions.
    schema = FLIGHTS.schema.set(0, pa.field("origin", pa.string()))
    builder = StreamsBuilder()
    group(builder.stream("flights")).count(column="total").to_delta("t")
    shape = TopicShape(schema=schema, key_columns=("origin",))
    assert len(compile_topology(builder.build(), {"flights": shape}).repartitions) == moves


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (
            {"key": "string", "value": pa.date32()},
            r"date32\[day\] does not define how to read the value: give one",
        ),
        ({"key": pa.date32(), "value": "long"}, r"date32\[day\] does not define how to read the key"),
        ({"key": "string", "value": FLIGHTS.schema}, "row of origin, .* does not define how to read the value"),
    ],
)
def test_a_topic_of_bytes_needs_serdes_that_read_bytes(types, message):
    builder = StreamsBuilder()
    builder.stream("days", **types).to("out")
    with (
        mock.patch.object(JobInputs, "shape_of", return_value=(OPAQUE_SHAPE, 1)),
        pytest.raises(TopologyError, match=f"KSTREAM-SOURCE-0000000000: days is a topic of bytes, and {message}"),
    ):
        Job.prepare(builder.build(), JobInputs(bootstrap_servers="nowhere:1"))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda s: s.group_by_key().count().to("out"),
            r"KTable has no to\(\): its changes are a stream: to_stream\(\)",
        ),
        (lambda s: s.group_by_key().to("out"), r"KGroupedStream has no to\(\): aggregate it first: count\(\)"),
        (lambda s: s.group_by_key().windowed_by(tumbling(5)).to_delta("t"), r"TimeWindowedKStream has no to_delta\(\)"),
        (lambda s: s.to_table().group_by("carrier").to_delta("t"), r"KGroupedTable has no to_delta\(\): aggregate it"),
        (lambda s: s.count(), r"KStream has no count\(\): group it by group_by_key\(\)"),
        (lambda s: s.split().to("out"), r"BranchedKStream has no to\(\): name a branch first"),
        (
            lambda _: StreamsBuilder().global_table("g").filter(1),
            r"GlobalKTable has no filter\(\): a global table can only be joined by streams",
        ),
    ],
)
def test_a_missing_method_names_the_handle_that_has_it(use, message):
    with pytest.raises(AttributeError, match=message):
        use(StreamsBuilder().stream("flights", schema=FLIGHTS.schema, key_columns=["origin"]))
