"""Tests of topologies' checkpoints on Spark.

Stores are queried during a run and after it, and changed topologies are refused.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from millrace.clients import Admin, Producer
from millrace.errors import UsageError
from millrace_streams import (
    IncompatibleStateError,
    StreamsBuilder,
    Topology,
    TopologyTestDriver,
    col,
    count,
    mean,
    run_stream,
    sessions,
    tumbling,
)
from millrace_streams import max as max_
from millrace_streams.cli.streams import app
from millrace_streams.graph.store_names import PAGES
from millrace_streams.queries import open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace_broker.testing import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

START = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("origin", pa.string()), ("delay", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
PLACED = pa.schema([*SCHEMA, ("__partition", pa.int32()), ("__offset", pa.int64())])
STORES = ("hours", "latest", "by-delay", "trips")


def topology(*, hours: int = 1) -> Topology:
    builder = StreamsBuilder()
    flights = builder.stream("flights", schema=SCHEMA, key_columns=["origin"], timestamp="at")
    by_origin = flights.group_by("origin")
    windows = by_origin.windowed_by(tumbling(timedelta(hours=hours), grace=timedelta(days=1)))
    windows.aggregate(n=count(), mean_delay=mean("delay"), store="hours").to_delta("hours")
    by_origin.reduce(lambda before, flight: flight, store="latest")
    by_origin.windowed_by(sessions(timedelta(minutes=5), grace=timedelta(days=1))).count(store="trips")
    flights.group_by(late=col("delay") % 4).count(store="by-delay")
    return builder.build()


def batches() -> list[list[dict[str, Any]]]:
    return [
        [
            {
                "origin": f"O{place % 6}",
                "delay": place,
                "at": START + timedelta(minutes=number * 100 + place),
                "__partition": place % 2,
                "__offset": number * 100 + place,
            }
            for place in range(100)
        ]
        for number in range(2)
    ]


def write(directory: Path) -> None:
    for number, rows in enumerate(batches()):
        path = directory / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, PLACED), path)
        os.utime(path, (1000 + number, 1000 + number))


@pytest.fixture(scope="module")
def checkpoint(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run two micro-batches, query the state meanwhile, and return the checkpoint."""
    directory = tmp_path_factory.mktemp("state")
    (directory / "in").mkdir()
    write(directory / "in")
    seen: list[Any] = []

    def look(report: Any) -> None:
        if report.batch_id == 1:
            with open_state(directory / "checkpoint", spark=spark) as state:
                seen.append((state.batch_id, state.store("latest").get("O3")["delay"]))

    start(spark, directory, topology(), on_batch=look).awaitTermination()
    assert seen == [(0, 99)]
    return directory / "checkpoint"


def start(spark: SparkSession, directory: Path, of: Topology, **options: Any) -> Any:
    schema = spark.read.parquet(str(directory / "in")).schema
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory / "in"))
    return run_stream(
        of,
        spark,
        checkpoint=str(directory / "checkpoint"),
        tables=str(directory / "hours"),
        inputs={"flights": frame},
        available_now=True,
        **options,
    )


def driver(rows: list[dict[str, Any]]) -> TopologyTestDriver:
    found = TopologyTestDriver(topology())
    found.pipe("flights", rows)
    return found


def test_stores_hold_what_the_driver_s_hold(spark: SparkSession, checkpoint: Path) -> None:
    # One partition is enough, because no store here depends on stream time.
    for batch, rows in ((0, batches()[0]), (1, [row for each in batches() for row in each])):
        expected = driver(rows)
        with open_state(checkpoint, spark=spark, batch=batch) as state:
            for name in STORES:
                found = sorted(state.store(name).all(), key=repr)
                assert found == sorted(expected.entries(name), key=repr), (name, batch)
                assert len(found) > 3


def test_a_batch_or_store_that_is_not_there_is_named(spark: SparkSession, checkpoint: Path) -> None:
    with (
        pytest.raises(UsageError, match="batch 7 has no state to read: give a batch from 0 to 1"),
        open_state(checkpoint, spark=spark, batch=7),
    ):
        pass
    with open_state(checkpoint, spark=spark) as state, pytest.raises(UsageError, match="the stores are "):
        state.store("days")


def test_a_changed_topology_is_refused_before_it_starts(spark: SparkSession, checkpoint: Path) -> None:
    with pytest.raises(IncompatibleStateError, match=r"KSTREAM-AGGREGATE-\d+: windows of its store hours: 7200000 ms"):
        start(spark, checkpoint.parent, topology(hours=2))
    start(spark, checkpoint.parent, topology()).awaitTermination()


def test_the_command_line_prints_rows(spark: SparkSession, checkpoint: Path) -> None:
    def run(*arguments: str) -> str:
        ended = CliRunner().invoke(app, [*arguments, "--checkpoint", str(checkpoint)])
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    assert {each["store"] for each in json.loads(run("stores", "--json"))} == set(STORES)
    lines = run(
        "query",
        "hours",
        "--key",
        "O1",
        "--time-from",
        "2013-01-01T01:00",
        "--time-to",
        "2013-01-01T02:00",
        "-f",
        "json",
    ).splitlines()
    found = [json.loads(line) for line in lines]
    assert [(row["origin"], row["window_start"], row["n"]) for row in found] == [
        ("O1", "2013-01-01T01:00:00+00:00", 11),
        ("O1", "2013-01-01T02:00:00+00:00", 10),
    ]
    by_delay = run("query", "by-delay", "--from", "1", "--to", "2", "--format", "csv").splitlines()
    assert by_delay == ["late,count,timestamp", *by_delay[1:]]
    assert [line.split(",")[:2] for line in by_delay[1:]] == [["1", "50"], ["2", "50"]]
    assert "O5" in run("query", "latest")


def test_a_store_of_many_keys_is_paged_and_read_like_any_other(spark: SparkSession, tmp_path: Path) -> None:
    # One batch fills pages, and one reads few of them. The same query of the store gives the same answer afterwards.
    (tmp_path / "in").mkdir()
    many = [
        {"key": f"k{number}", "value": number, "__partition": 0, "__offset": number, "__timestamp": START}
        for number in range(50_000)
    ]
    few = [{**row, "value": -1, "__offset": 50_000 + place} for place, row in enumerate(many[:3])]
    columns = [("key", pa.string()), ("value", pa.int64()), *map(PLACED.field, ("__partition", "__offset"))]
    schema = pa.schema([*columns, ("__timestamp", pa.timestamp("us", tz="UTC"))])
    for number, rows in enumerate([many, few]):
        path = tmp_path / "in" / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
        os.utime(path, (1000 + number, 1000 + number))
    builder = StreamsBuilder()
    numbers = builder.stream("flights", key="string", value="long").group_by_key()
    numbers.count(store="columns").to_delta("counts")
    numbers.reduce(lambda before, value: before + value, store="objects")
    start(spark, tmp_path, builder.build()).awaitTermination()
    checkpoint = tmp_path / "checkpoint"
    for store, changed in (("columns", 2), ("objects", 1)):
        found = _pages(spark, checkpoint, store)
        assert len(found) >= 4
        assert max(found) < 1 << 20
        with open_state(checkpoint, spark=spark) as state:
            kept = state.store(store)
            assert len(kept.all()) == 50_000
            assert kept.get("k2") == changed
            assert kept.get("k49999") == (1 if store == "columns" else 49_999)


def _pages(spark: SparkSession, checkpoint: Path, store: str) -> list[int]:
    """Return the sizes in bytes of a store's pages, as Spark's state reader has them."""
    frame = spark.read.format("statestore").option("stateVarName", PAGES).load(str(checkpoint))
    sizes = frame.where(f"user_map_key.store = '{store}'").selectExpr("length(user_map_value.chunk)")
    return [size for (size,) in sizes.collect()]


def test_a_global_table_is_read_as_one_though_every_bucket_has_it(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    # Two streams that never meet, of topics of two and three partitions, are joined with a table of one.
    servers = module_broker.bootstrap_servers
    with Admin({"bootstrap.servers": servers}) as admin:
        for topic, partitions in (("visits", 2), ("calls", 3), ("names", 1)):
            admin.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})
    with Producer({"bootstrap.servers": servers}) as producer:
        for number in range(30):
            key = f"k{number % 10}".encode()
            for topic in ("visits", "calls"):
                producer.send(topic, key, key=key, timestamp_ms=number)
            producer.send("names", f"name {number}".encode(), key=key, timestamp_ms=number)
    builder = StreamsBuilder()
    names = builder.global_table("names", key="string", value="string", store="names")
    for topic in ("visits", "calls"):
        named = builder.stream(topic, key="string", value="string").join(names, both, selector=col("value"))
        named.group_by_key().aggregate(n=count(), last=max_("value"), store=topic).to_delta(topic)
    tables = {topic: str(tmp_path / topic) for topic in ("visits", "calls")}
    checkpoint = tmp_path / "checkpoint"
    run_stream(
        builder.build(),
        spark,
        bootstrap_servers=servers,
        tables=tables,
        checkpoint=str(checkpoint),
        available_now=True,
    ).awaitTermination()
    latest = {f"k{key}": f"name {20 + key}" for key in range(10)}
    with open_state(checkpoint, spark=spark) as state:
        found = state.store("names")
        assert len(found.buckets) == 1
        assert {entry.key: entry.value for entry in found.all()} == latest
        assert len(found.all()) == 10
        assert found.get("k3") == "name 23"
        assert [entry.key for entry in found.range("k7", "k8")] == ["k7", "k8"]
        assert state.store("calls").get("k3") == {"key": "k3", "n": 3, "last": "k3/name 23"}
    for path in tables.values():
        rows = spark.read.format("delta").load(path).select("key", "n", "last").collect()
        assert sorted(map(tuple, rows)) == [(key, 3, f"{key}/{name}") for key, name in latest.items()]


def both(key: str, name: str) -> str:
    return f"{key}/{name}"
