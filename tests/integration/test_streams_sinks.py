"""Tests of a topology's sinks on Spark.

The tests cover topics (once), functions, dead letters, and several sinks together.
"""

from __future__ import annotations

import contextlib
import json
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millrace.clients import Admin, Consumer, Producer
from millrace.errors import TopicExistsError, UnknownTopicOrPartitionError
from millrace_streams import (
    Serde,
    StreamsBuilder,
    Topology,
    TopologyError,
    avro,
    col,
    count,
    json_rows,
    open_state,
    protobuf,
    run_batch,
    run_stream,
    sessions,
    tumbling,
)
from millrace_streams import sum as sum_
from millrace_streams.upgrades.rebuild import rebuild

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace_broker.testing import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TYPES = {"key": "string", "value": "long"}
FOREVER = {"retention.ms": "-1"}
TYPED = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("total", pa.int64())])


def topics(servers: str, **partitions: int) -> None:
    with Admin({"bootstrap.servers": servers}) as admin:
        for name, count in partitions.items():
            admin.create_topic(name.replace("_", "-"), partitions=count, configs=FOREVER)


def produce(servers: str, topic: str, records: list[tuple[str, bytes]]) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        for number, (key, value) in enumerate(records):
            producer.send(topic, value, key=key.encode(), timestamp_ms=number)


def consumed(servers: str, topic: str) -> list[Any]:
    """Return all committed records of a topic."""
    config = {"bootstrap.servers": servers, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with Consumer(config) as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[Any] = []
        for _ in range(200):
            found += consumer.poll(100)
            if all(consumer.position(partition) >= end for partition, end in ends.items()):
                return found
    raise AssertionError(f"{topic} was not read to its end")


def long(number: int) -> bytes:
    return struct.pack(">q", number)


def spread(source: str, prefix: str) -> Topology:
    """Build one source whose records go through a topic, with sinks in topics of bytes and of columns."""
    builder = StreamsBuilder()
    numbers = builder.stream(source, **TYPES)
    evens = numbers.map(lambda key, value: (str(value % 2), value)).through(f"{prefix}-by-parity")
    evens.group_by_key().windowed_by(tumbling(10)).count().to_stream().to(f"{prefix}-windows")
    evens.group_by_key().windowed_by(sessions(3)).count().to_stream().to(f"{prefix}-sessions")
    totals = numbers.group_by_key().aggregate(
        lambda: {"total": 0}, lambda key, value, row: {"total": row["total"] + value}, value=pa.schema([TYPED.field(1)])
    )
    totals.to_stream().to(f"{prefix}-totals")
    return builder.build()


def run_on(topology: Topology, spark: SparkSession, directory: Path, **arguments: Any) -> None:
    query = run_stream(topology, spark, checkpoint=str(directory), available_now=True, **arguments)
    query.awaitTermination()
    assert query.exception() is None


def test_topics_take_each_result_once_though_a_batch_is_run_again(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = module_broker.bootstrap_servers
    topics(servers, numbers=2, s_by_parity=2, s_windows=1, s_sessions=1)
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topic("s-totals", partitions=2, schema=TYPED, key_columns=["key"], configs=FOREVER)
    produce(servers, "numbers", [("abc"[number % 3], long(number)) for number in range(12)])
    checkpoint = tmp_path / "checkpoint"
    run_on(spread("numbers", "s"), spark, checkpoint, bootstrap_servers=servers)
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    run_on(spread("numbers", "s"), spark, checkpoint, bootstrap_servers=servers)
    parity = [(record.key, record.value) for record in consumed(servers, "s-by-parity")]
    assert sorted(parity) == sorted((b"%d" % (number % 2), long(number)) for number in range(12))
    windows = {}
    for record in consumed(servers, "s-windows"):
        windows[record.key] = struct.unpack(">q", record.value)[0]
    assert windows == {key + long(start): count for key in (b"0", b"1") for start, count in ((0, 5), (10, 1))}
    latest = {record.key: record.value for record in consumed(servers, "s-sessions")}
    # Key, end, start. A replaced session ends with a tombstone.
    assert {key: value for key, value in latest.items() if value} == {
        b"0" + long(10) + long(0): long(6),
        b"1" + long(11) + long(1): long(6),
    }
    totals = {}
    for record in consumed(servers, "s-totals"):
        totals[record.value["key"]] = record.value["total"]
    assert totals == {key: sum(range(place, 12, 3)) for place, key in enumerate("abc")}


def taking(taken: list[Any]) -> Any:
    def take(rows: DataFrame, number: int) -> None:
        taken.extend((number, row.asDict()) for row in rows.collect())

    return take


def test_rows_are_written_to_topics_of_bytes_in_every_format_and_read_back(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = module_broker.bootstrap_servers
    columns = "sku STRING, n BIGINT, total DOUBLE"
    formats = {"avro": avro(columns), "json": json_rows(columns), "protobuf": protobuf(columns)}
    topics(servers, sales=2, checked=2, **{f"sold_{name}": 2 for name in formats})
    sale = avro("sku STRING, price DOUBLE")
    produce(
        servers,
        "sales",
        [("k", sale.serialize({"sku": "abc"[number % 3], "price": number / 2})) for number in range(12)],
    )
    builder = StreamsBuilder()
    sales = builder.stream("sales", key="string", value=sale).filter(col("price") > 0.0)
    checked = sales.select_key("sku").through("checked", value=sale)
    sold = checked.group_by_key().aggregate(n=count(), total=sum_("price"), emit="last").to_stream()
    for name, serde in formats.items():
        sold.to(f"sold-{name}", key=json_rows("sku STRING"), value=serde)
    run_on(builder.build(), spark, tmp_path / "c", bootstrap_servers=servers)
    through = [(record.key, sale.deserialize(record.value)["sku"]) for record in consumed(servers, "checked")]
    assert sorted(through) == sorted(("abc"[number % 3].encode(), "abc"[number % 3]) for number in range(1, 12))
    expected = [
        {"sku": sku, "n": len(prices), "total": float(sum(prices))}
        for sku, prices in (("a", [1.5, 3.0, 4.5]), ("b", [0.5, 2.0, 3.5, 5.0]), ("c", [1.0, 2.5, 4.0, 5.5]))
    ]
    # A consumer reads them, and another topology, as rows with columns.
    builder = StreamsBuilder()
    for name, serde in formats.items():
        records = consumed(servers, f"sold-{name}")
        rows = sorted((serde.deserialize(record.value) for record in records), key=lambda row: row["sku"])
        assert rows == expected
        assert sorted(record.key for record in records) == [b'{"sku":"%c"}' % sku for sku in b"abc"]
        read_back = builder.stream(f"sold-{name}", key="bytes", value=serde).filter(col("n") > 3)
        read_back.select("sku", "n").to_delta(name)
    tables = {name: str(tmp_path / name) for name in formats}
    run_batch(builder.build(), spark, bootstrap_servers=servers, tables=tables)
    for path in tables.values():
        found = spark.read.format("delta").load(path).select("sku", "n").collect()
        assert sorted(map(tuple, found)) == [("b", 4), ("c", 4)]


def test_a_function_takes_the_place_of_a_table_or_topic(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"key": "ab"[number % 2], "value": number, "__offset": number} for number in range(6)]
    spark.createDataFrame(rows, "key string, value long, __offset long").selectExpr(
        "*", "timestamp_millis(__offset) AS __timestamp"
    ).coalesce(1).write.parquet(str(tmp_path / "in"), mode="overwrite")
    frame = spark.read.parquet(str(tmp_path / "in"))
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", **TYPES)
    numbers.filter(lambda value: value % 3 == 0).to("thirds")
    numbers.group_by_key().reduce(lambda total, value: total + value).to_delta("totals")
    for name in ("stream", "batch"):
        taken: dict[str, list[Any]] = {"thirds": [], "totals": []}
        functions = {topic: taking(rows) for topic, rows in taken.items()}
        if name == "stream":
            stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
            run_on(builder.build(), spark, tmp_path / "c", inputs={"numbers": stream}, foreach_batch=functions)
        else:
            run_batch(builder.build(), spark, inputs={"numbers": frame}, foreach_batch=functions)
        assert [(number, row["value"], row["__timestamp"].microsecond) for number, row in taken["thirds"]] == [
            (0, 0, 0),
            (0, 3, 3000),
        ]
        assert sorted((row["key"], row["value"]) for _, row in taken["totals"]) == [("a", 6), ("b", 9)]


def test_a_function_gets_more_rows_than_an_arrow_batch_holds(spark: SparkSession) -> None:
    count = 40_001  # Arrow batches have 20,000 rows
    frame = spark.range(count).selectExpr(
        "CAST(id % 7 AS STRING) AS key", "id AS value", "id AS __offset", "timestamp_millis(id) AS __timestamp"
    )
    builder = StreamsBuilder()
    builder.stream("numbers", **TYPES).filter(col("value") >= 0).to("same")
    taken: list[Any] = []
    run_batch(builder.build(), spark, inputs={"numbers": frame}, foreach_batch={"same": taking(taken)})
    assert sorted(row["value"] for _, row in taken) == list(range(count))
    assert {row["__headers"] for _, row in taken} == {None}


def test_records_that_fail_go_to_a_topic_of_dead_letters(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = module_broker.bootstrap_servers
    topics(servers, orders=1, bad_orders=1, order_totals=1)
    good = [json.dumps({"of": "ab"[number % 2], "amount": number}).encode() for number in range(6)]
    records = [
        ("x", value) for value in [*good[:3], b"{not json", b'{"of": "a"}', *good[3:], b'{"of": "b", "amount": -1}']
    ]
    produce(servers, "orders", records)

    def add(total: int, amount: int) -> int:
        if amount < 0:
            raise ValueError(f"{amount} is negative")
        return total + amount

    builder = StreamsBuilder()
    orders = builder.stream("orders", key="string", value="json", name="orders-source")
    amounts = orders.map(lambda key, order: (order["of"], order["amount"]), value="long", name="by-customer")
    amounts.group_by_key().reduce(add, name="totals").to_stream().to("order-totals")
    run_on(builder.build(), spark, tmp_path / "c", bootstrap_servers=servers, dead_letters="bad-orders")
    totals = {record.key: struct.unpack(">q", record.value)[0] for record in consumed(servers, "order-totals")}
    assert totals == {b"a": 6, b"b": 9}
    letters = {}
    for record in consumed(servers, "bad-orders"):
        headers = {name.rpartition(".")[2]: value.decode() for name, value in record.headers}
        letters[int(headers["offset"])] = (headers["node"], record.value, headers["reason"])
    assert {offset: letter[:2] for offset, letter in letters.items()} == {
        3: ("orders-source", b"{not json"),
        4: ("by-customer", b'{"of": "a"}'),
        8: ("totals", b"-1"),
    }
    assert "-1 is negative (record of topic orders, partition 0, offset 8" in letters[8][2]


def test_headers_go_with_what_is_made_of_a_record(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = module_broker.bootstrap_servers
    topics(servers, traced=2, t_passed=1, t_counts=2)
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topic("t-typed", partitions=1, schema=TYPED, key_columns=["key"], configs=FOREVER)
    with Producer({"bootstrap.servers": servers}) as producer:
        for number in range(6):
            headers = {"trace": str(number).encode(), "none": None} if number % 3 else None
            producer.send("traced", long(number), key="ab"[number % 2], headers=headers, timestamp_ms=number)
    builder = StreamsBuilder()
    traced = builder.stream("traced", **TYPES)
    traced.filter(lambda value: value > 0).to("t-passed")
    moved = traced.select_key(lambda key, value: "all", key="string").group_by_key()
    counts = moved.count().to_stream()
    counts.to("t-counts")
    traced.group_by_key().aggregate(total=sum_("value")).to_stream().to("t-typed")
    expected = {
        number: ((("trace", str(number).encode()), ("none", None)) if number % 3 else ()) for number in range(6)
    }

    def check(times: int) -> None:
        passed = {struct.unpack(">q", each.value)[0]: tuple(each.headers) for each in consumed(servers, "t-passed")}
        assert passed == {number: expected[number] for number in range(1, 6)}
        found = [tuple(each.headers) for each in consumed(servers, "t-counts")]
        assert found == list(expected.values()) * times
        sums = {(each.value["key"], each.value["total"]): each.headers for each in consumed(servers, "t-typed")}
        assert {key: tuple(headers) for key, headers in sums.items()} == {
            ("a", 0): expected[0],
            ("b", 1): expected[1],
            ("a", 2): expected[2],
            ("b", 4): expected[3],
            ("a", 6): expected[4],
            ("b", 9): expected[5],
        }

    run_on(builder.build(), spark, tmp_path / "c", bootstrap_servers=servers)
    check(1)
    run_batch(builder.build(), spark, bootstrap_servers=servers)
    check(2)


def test_values_that_a_serde_cannot_write_become_dead_letters_without_other_effects(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = module_broker.bootstrap_servers
    topics(servers, small=2, small_out=1, small_totals=1, small_letters=1)
    numbers = [5, 70, 200, 7, 2**40, 300]
    produce(servers, "small", [("a", long(number)) for number in numbers])
    byte = Serde(name="byte", data_type=pa.int64(), serialize=lambda n: struct.pack(">B", n), deserialize=ord)
    builder = StreamsBuilder()
    small = builder.stream("small", **TYPES)
    small.to("small-out", value=byte, name="as-read")
    twice = small.map_values(lambda n: n * 2, value="long").group_by_key()
    totals = twice.reduce(lambda one, other: one + other, store="totals")
    totals.to_stream().to("small-totals", value=byte, name="as-totals")
    arguments = {"bootstrap_servers": servers, "dead_letters": "small-letters"}
    run_on(builder.build(), spark, tmp_path / "c", **arguments)
    letters = {}
    for record in consumed(servers, "small-letters"):
        headers = {name.rpartition(".")[2]: value.decode() for name, value in record.headers}
        letters[numbers[int(headers["offset"])]] = (headers["node"], record.value, headers["reason"])
    # Twice 5 and 70 is 150. With twice 200 it would exceed a byte, and with twice 7 it is 164. Failed records are in no
    # total.
    assert {number: letter[:2] for number, letter in letters.items()} == {
        200: ("as-totals", b"200"),
        2**40: ("as-read", long(2**40)),
        300: ("as-read", long(300)),
    }
    assert "the value 550 cannot be written as byte" in letters[200][2]
    assert "(record of topic small, partition" in letters[300][2]
    # Records that an earlier stage wrote before the failure stay.
    assert [record.value for record in consumed(servers, "small-out")] == [b"\x05", b"F", b"\xc8", b"\x07"]
    assert [record.value for record in consumed(servers, "small-totals")] == [b"\n", b"\x96", b"\xa4"]
    run_batch(builder.build(), spark, **arguments)
    assert [record.value for record in consumed(servers, "small-totals")][3:] == [b"\n", b"\x96", b"\xa4"]
    rebuild(
        builder.build(),
        spark,
        checkpoint=tmp_path / "c",
        bootstrap_servers=servers,
        now=datetime.now(UTC),
        puts_aside=True,
    )
    with open_state(tmp_path / "c") as state:
        assert state.store("totals").get("a") == 164


def test_without_a_topic_of_dead_letters_the_query_stops_and_says_where(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = module_broker.bootstrap_servers
    topics(servers, halves=1, halves_out=1)
    produce(servers, "halves", [("a", long(4)), ("b", long(0))])
    builder = StreamsBuilder()
    halves = builder.stream("halves", **TYPES).group_by_key()
    halves.reduce(lambda one, value: one).to_stream().map_values(lambda value: 8 // value, name="divide").to(
        "halves-out"
    )
    query = run_stream(
        builder.build(), spark, checkpoint=str(tmp_path / "c"), bootstrap_servers=servers, available_now=True
    )
    with pytest.raises(Exception, match=r"divide: .* raised ZeroDivisionError: .*topic halves, partition 0, offset 1"):
        query.awaitTermination()


def test_results_that_a_topic_cannot_take_are_refused_before_the_start(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = module_broker.bootstrap_servers
    topics(servers, source=1, pairs=1, others=1)

    def run(build: Any, **more: Any) -> None:
        builder = StreamsBuilder()
        build(builder.stream("source", **TYPES))
        run_batch(builder.build(), spark, bootstrap_servers=servers, **more)

    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        run(lambda s: s.to("nowhere"))
    with pytest.raises(TopologyError, match=r"the value of pairs is one value in a topic of bytes, not the columns n"):
        run(lambda s: s.map_values(lambda value: {"n": value}, value=pa.schema([("n", pa.int64())])).to("pairs"))
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topic("columns", schema=TYPED, key_columns=["key"])
    with pytest.raises(TopologyError, match="columns is a typed topic, whose columns are written by name: leave key="):
        run(lambda s: s.to("columns", value="long"))
    with pytest.raises(UnknownTopicOrPartitionError, match="no-letters"):
        run(lambda s: s.to("others"), dead_letters="no-letters")


class ToldByTask:
    """A processor that forwards by the task's data in its context."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        context = self.context
        told = f"{record.value} {context.current_stream_time_ms} {context.task_id} {context.application_id}"
        context.forward(record.with_value(told), child_name=f"child-{record.key}")


def by_key(prefix: str) -> Topology:
    """Send records through a processor to topics that a function names."""
    builder = StreamsBuilder()
    told = builder.stream("named-source", **TYPES).process(ToldByTask, value="string")
    for key in "ab":
        chosen = told.map_values(lambda value: value, name=f"child-{key}")
        chosen.to(lambda key, value, context: f"{prefix}-{key}-{context.topic}", name=f"sink-{key}")
    return builder.build()


def test_records_go_once_to_the_topics_that_a_function_names(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = module_broker.bootstrap_servers
    with Admin({"bootstrap.servers": servers}) as admin:
        for name in ("named-source", "s-a-named-source", "s-b-named-source", "l-a-named-source"):
            admin.create_topic(name, partitions=1, configs=FOREVER)
    produce(servers, "named-source", [("ab"[number % 2], long(number)) for number in range(6)])
    checkpoint = tmp_path / "checkpoint"
    run_on(by_key("s"), spark, checkpoint, bootstrap_servers=servers)
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    run_on(by_key("s"), spark, checkpoint, bootstrap_servers=servers)
    for place, key in enumerate("ab"):
        found = [(record.key, record.value.decode()) for record in consumed(servers, f"s-{key}-named-source")]
        expected = [f"{number} {number} 0_0 {query_id}" for number in range(place, 6, 2)]
        assert found == [(key.encode(), told) for told in expected]
    run_batch(by_key("s"), spark, bootstrap_servers=servers)
    added = [record.value.decode() for record in consumed(servers, "s-b-named-source")][3:]
    assert added == [f"{number} {number} 0_0 {spark.sparkContext.applicationId}" for number in (1, 3, 5)]
    builder = StreamsBuilder()
    builder.stream("named-source", **TYPES).to(lambda key, value: f"l-{key}-named-source")
    with pytest.raises(Exception, match="topic l-b-named-source does not exist"):
        run_on(builder.build(), spark, tmp_path / "missing", bootstrap_servers=servers)
    assert consumed(servers, "l-a-named-source") == []


def named_by_value(value: int) -> Any:
    """Name topics by value.

    Two names are impossible, one is missing because the function fails, and one topic exists.
    """
    if value == 3:
        raise KeyError("no topic for 3")
    return {1: None, 2: "no topic"}.get(value, "n-there")


@pytest.mark.parametrize("runner", ["stream", "batch"])
def test_records_without_a_topic_stop_the_query_or_become_dead_letters(
    runner: str, spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = module_broker.bootstrap_servers
    source, letters = f"n-{runner}-source", f"n-{runner}-letters"
    with Admin({"bootstrap.servers": servers}) as admin:
        for name in (source, letters):
            admin.create_topic(name, partitions=1, configs=FOREVER)
        with contextlib.suppress(TopicExistsError):  # the other runner's test may have created it
            admin.create_topic("n-there", partitions=1, configs=FOREVER)
    produce(servers, source, [(runner, long(number)) for number in range(5)])

    def run(function: Any, name: str, **arguments: Any) -> None:
        builder = StreamsBuilder()
        builder.stream(source, **TYPES).to(function, name="by-value")
        if runner == "batch":
            run_batch(builder.build(), spark, bootstrap_servers=servers, **arguments)
        else:
            run_on(builder.build(), spark, tmp_path / name, bootstrap_servers=servers, **arguments)

    def written() -> list[bytes]:
        return [record.value for record in consumed(servers, "n-there") if record.key == runner.encode()]

    with pytest.raises(
        Exception,
        match=r"by-value: .*returned None, which cannot be the name of a topic \(record of topic n-.*offset 1",
    ):
        run(named_by_value, "stops")
    with pytest.raises(Exception, match="topic n-missing does not exist"):
        run(lambda value: "n-missing" if value == 4 else "n-there", "missing")
    assert written() == []
    run(named_by_value, "aside", dead_letters=letters)
    assert written() == [long(0), long(4)]
    found = {}
    for record in consumed(servers, letters):
        headers = {name.rpartition(".")[2]: value.decode() for name, value in record.headers}
        found[int(headers["offset"])] = (headers["node"], record.value, headers["reason"])
    assert {offset: letter[:2] for offset, letter in found.items()} == {
        number: ("by-value", long(number)) for number in (1, 2, 3)
    }
    assert "returned 'no topic', which cannot be the name of a topic" in found[2][2]
    assert "raised KeyError: 'no topic for 3'" in found[3][2]
