"""Tests of topologies on Spark.

The stream, the batch and the test driver give the same rows. No row is written twice.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.clients import Admin, Producer
from millrace.errors import UsageError
from millrace_streams import (
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    TopologyTestDriver,
    batchwise,
    col,
    count,
    explain,
    hopping,
    mean,
    run_batch,
    run_stream,
    tumbling,
)
from millrace_streams import max as max_
from millrace_streams import sum as sum_
from millrace_streams.runners.batch import bounded_results
from millrace_streams.runners.packed_rows import ROWS_PER_PAYLOAD
from millrace_streams.runners.results import Results
from millrace_streams.runners.source import Job, JobInputs
from millrace_streams.runners.spreading import PARTITIONS_MAX, places, spread
from millrace_streams.serdes import LONG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace_broker.testing import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20130101
START = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("origin", pa.string()), ("delay", pa.float64()), ("at", pa.timestamp("us", tz="UTC"))])
PLACED = pa.schema([*SCHEMA, ("__partition", pa.int32()), ("__offset", pa.int64())])
ORIGINS = (["JFK", "LGA"], ["EWR", None], ["BOS"])


HOURS = tumbling(timedelta(hours=1), grace=timedelta(hours=2))


def topology(emit: str = "last", window: TimeWindows = HOURS) -> Topology:
    builder = StreamsBuilder()
    flights = builder.stream("flights", schema=SCHEMA, key_columns=["origin"], timestamp="at")
    known = flights.filter(col("delay").is_not_null())
    hours = known.group_by("origin").windowed_by(window)
    table = hours.aggregate(
        n=count(), total=sum_("delay"), mean_delay=mean("delay"), worst=max_("delay"), store="hours", emit=emit
    )
    table.to_delta("hours")
    known.filter(batchwise(lambda frame: frame["delay"] > 90)).select("delay").to_delta("very_late")
    return builder.build()


def disordered_files(directory: Path, files: int, rows_max: int) -> list[dict[str, Any]]:
    """Write files of random sizes, one per micro-batch.

    The files are out of order in time and shuffled within, and have nulls.

    Return all rows.
    """
    chance = random.Random(SEED)
    offsets = [0, 0, 0]
    everything = []
    for number in range(files):
        rows = []
        for _ in range(chance.randint(1, rows_max)):
            partition = chance.randrange(3)
            at = START + timedelta(minutes=number * 240 + chance.randint(0, 480))
            delay = chance.choice([None, chance.random() * 100, chance.random() * 100])
            origin = chance.choice(ORIGINS[partition])
            rows.append(
                {"origin": origin, "delay": delay, "at": at, "__partition": partition, "__offset": offsets[partition]}
            )
            offsets[partition] += 1
        everything += rows
        chance.shuffle(rows)
        path = directory / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, PLACED), path)
        # Spark reads files in the order of their modification times.
        os.utime(path, (START.timestamp() + number, START.timestamp() + number))
    return everything


def stream_of(spark: SparkSession, directory: Path) -> DataFrame:
    schema = spark.read.parquet(str(directory)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))


def rows_of(spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    # Compare sorted rows in Python, because a Delta table has no order of rows.
    return sorted(spark.read.format("delta").load(str(path)).toArrow().to_pylist(), key=repr)


def paths(directory: Path) -> dict[str, str]:
    return {"hours": str(directory / "hours"), "very_late": str(directory / "very_late")}


def finish(query: Any) -> None:
    query.awaitTermination()
    assert query.exception() is None


def driver_of(rows: list[dict[str, Any]], window: TimeWindows = HOURS) -> TopologyTestDriver:
    driver = TopologyTestDriver(topology(window=window), partitions=3)
    for partition in range(3):
        driver.pipe("flights", [row for row in rows if row["__partition"] == partition], partition=partition)
    return driver


@pytest.mark.parametrize(
    ("emit", "window"),
    [("last", HOURS), ("every", hopping(timedelta(hours=1), advance=timedelta(minutes=25), grace=timedelta(hours=1)))],
    ids=["last tumbling", "every hopping"],
)
def test_stream_batch_and_driver_agree_row_for_row(
    spark: SparkSession, tmp_path: Path, emit: str, window: TimeWindows
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    everything = disordered_files(source, files=3, rows_max=300)
    reports: list[Any] = []
    query = run_stream(
        topology(emit, window),
        spark,
        checkpoint=str(tmp_path / "checkpoint"),
        tables=paths(tmp_path / "stream"),
        inputs={"flights": stream_of(spark, source)},
        available_now=True,
        on_batch=reports.append,
    )
    finish(query)
    result = run_batch(
        topology(emit, window),
        spark,
        tables=paths(tmp_path / "batch"),
        inputs={"flights": spark.read.parquet(str(source))},
    )
    driver = driver_of(everything, window)
    assert len(reports) == 3
    assert sum(report.records for report in reports) == result.records == len(everything)
    assert sum(report.dropped for report in reports) == result.dropped == driver.dropped_records > 0
    for table in ("hours", "very_late"):
        streamed = rows_of(spark, tmp_path / "stream" / table)
        assert streamed == rows_of(spark, tmp_path / "batch" / table), f"seed {SEED}"
        assert streamed == sorted(driver.table(table).to_arrow().to_pylist(), key=repr), f"seed {SEED}"


def test_a_replayed_micro_batch_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    everything = disordered_files(source, files=3, rows_max=100)
    (tmp_path / "later").mkdir()
    shutil.move(source / "2.parquet", tmp_path / "later")

    def run() -> None:
        finish(
            run_stream(
                topology(),
                spark,
                checkpoint=str(tmp_path / "checkpoint"),
                tables=paths(tmp_path / "tables"),
                inputs={"flights": stream_of(spark, source)},
                available_now=True,
            )
        )

    run()
    before = {table: rows_of(spark, tmp_path / "tables" / table) for table in ("hours", "very_late")}
    # As after a crash between the write to Delta and Spark's own commit.
    commits = tmp_path / "checkpoint" / "commits"
    (commits / "1").unlink()
    (commits / ".1.crc").unlink(missing_ok=True)
    run()
    assert {table: rows_of(spark, tmp_path / "tables" / table) for table in before} == before
    shutil.move(tmp_path / "later" / "2.parquet", source)
    run()
    driver = driver_of(everything)
    for table in before:
        expected = sorted(driver.table(table).to_arrow().to_pylist(), key=repr)
        assert rows_of(spark, tmp_path / "tables" / table) == expected


def test_a_topic_is_read_as_far_as_it_goes_and_then_on(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = module_broker.bootstrap_servers
    rows = disordered_rows(2000)
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topic("flights", partitions=3, schema=topic_schema(), key_columns=["origin"])
    on_topic = topic_topology()
    reports: list[Any] = []
    for part in (rows[:1200], rows[1200:]):
        with Producer({"bootstrap.servers": servers}) as producer:
            producer.send_table("flights", pa.Table.from_pylist(part, topic_schema()))
            producer.flush()
        plans: list[str] = []
        query = run_stream(
            on_topic,
            spark,
            checkpoint=str(tmp_path / "checkpoint"),
            tables=str(tmp_path / "stream"),
            bootstrap_servers=servers,
            options={"maxOffsetsPerTrigger": 1000},
            available_now=True,
            on_batch=reports.append,
            on_plan=plans.append,
        )
        finish(query)
    result = run_batch(on_topic, spark, tables=str(tmp_path / "batch"), bootstrap_servers=servers)
    assert "columns pushed down: origin, delay, at\n" in plans[0]
    assert "Records move: no" in plans[0]
    assert [report.records for report in reports] == [1000, 200, 800]
    assert (result.records, result.dropped) == (2000, sum(report.dropped for report in reports))
    assert rows_of(spark, tmp_path / "stream") == rows_of(spark, tmp_path / "batch")
    assert sum(row["n"] for row in rows_of(spark, tmp_path / "batch")) + result.dropped == sum(
        row["delay"] is not None for row in rows
    )


def test_a_batch_over_a_time_range_takes_records_of_every_topic_by_their_time(
    spark: SparkSession, module_broker: EmbeddedBroker
) -> None:
    # A table begins with the range as well, but a global table never does.
    servers = module_broker.bootstrap_servers
    written = {
        "orders": [("a", 1, 1_000), ("a", 2, 5_000), ("b", 3, 7_000), ("b", 4, 9_000)],
        "customers": [("a", 10, 2_000), ("b", 20, 6_000)],
        "rates": [("a", 100, 2_000)],
    }
    with Admin({"bootstrap.servers": servers}) as admin:
        for topic in written:
            admin.create_topic(topic, partitions=1, configs={"retention.ms": "-1"})
    with Producer({"bootstrap.servers": servers}) as producer:
        for topic, records in written.items():
            for key, number, time_ms in records:
                producer.send(topic, LONG.serialize(number), key=key.encode(), timestamp_ms=time_ms)
    builder = StreamsBuilder()
    types = {"key": "string", "value": "long"}
    customers, rates = builder.table("customers", **types), builder.global_table("rates", **types)
    added = builder.stream("orders", **types).left_join(customers, lambda order, row: order + (row or 0))
    added.left_join(rates, lambda total, rate: total + (rate or 0), selector=lambda key, _: key).to_delta("totals")
    found: list[Any] = []
    result = run_batch(
        builder.build(),
        spark,
        bootstrap_servers=servers,
        options={"startingTimestamp": 5_000, "endingTimestamp": 9_000},
        foreach_batch={
            "totals": lambda rows, number: found.extend((row["key"], row["value"]) for row in rows.collect())
        },
    )
    assert found == [("a", 2 + 100), ("b", 3 + 20)]
    assert result.records == 4


class Enriching:
    """A processor that adds rows of a table and a global table."""

    def init(self, context: Any) -> None:
        self.context, self.customers, self.rates = context, context.store("customers"), context.store("rates")

    def process(self, record: Any) -> None:
        added = (self.customers.get(record.key) or 0) + (self.rates.get(record.key) or 0)
        self.context.forward(record.with_value(record.value + added))


def test_a_processor_reads_tables_and_negative_extracted_times_are_dropped_on_spark(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = module_broker.bootstrap_servers
    written = {
        "placed": [("a", 1, 1_000), ("a", -2, 5_000), ("b", 3, 7_000), ("a", 4, 9_000)],
        "clients": [("a", 10, 500), ("a", 20, 8_000)],
        "prices": [("a", 100, 2_000), ("b", 200, 2_000)],
    }
    with Admin({"bootstrap.servers": servers}) as admin:
        for topic in written:
            admin.create_topic(topic, partitions=2, configs={"retention.ms": "-1"})
    with Producer({"bootstrap.servers": servers}) as producer:
        for topic, records in written.items():
            for key, number, time_ms in records:
                producer.send(topic, LONG.serialize(number), key=key.encode(), timestamp_ms=time_ms)
    builder = StreamsBuilder()
    types: dict[str, Any] = {"key": "string", "value": "long"}
    builder.table("clients", **types, store="customers")
    builder.global_table("prices", **types, store="rates")
    placed = builder.stream("placed", **types, timestamp=lambda value, timestamp: timestamp if value > 0 else -1)
    placed.process(Enriching, stores=["customers", "rates"]).to_delta("totals")
    reports: list[Any] = []
    query = run_stream(
        builder.build(),
        spark,
        checkpoint=str(tmp_path / "checkpoint"),
        tables=str(tmp_path / "stream"),
        bootstrap_servers=servers,
        available_now=True,
        on_batch=reports.append,
    )
    finish(query)
    result = run_batch(builder.build(), spark, tables=str(tmp_path / "batch"), bootstrap_servers=servers)
    assert (result.dropped, sum(report.dropped for report in reports)) == (1, 1)
    for run in ("stream", "batch"):
        rows = rows_of(spark, tmp_path / run)
        assert sorted((row["key"], row["value"]) for row in rows) == [("a", 111), ("a", 124), ("b", 203)], run


def topic_schema() -> pa.Schema:
    return pa.schema([pa.field("origin", pa.string(), nullable=False), *list(SCHEMA)[1:], ("carrier", pa.string())])


def topic_topology() -> Topology:
    builder = StreamsBuilder()
    flights = builder.stream("flights", timestamp="at").filter(col("delay").is_not_null())
    hours = flights.group_by("origin").windowed_by(HOURS)
    hours.aggregate(n=count(), mean_delay=mean("delay")).to_delta("hours")
    return builder.build()


def disordered_rows(number: int) -> list[dict[str, Any]]:
    chance = random.Random(SEED)
    return [
        {
            "origin": chance.choice(["JFK", "LGA", "EWR", "BOS", "SFO"]),
            "delay": chance.choice([None, chance.random() * 100]),
            "at": START + timedelta(minutes=place // 2 + chance.randint(0, 300)),
            "carrier": "AA",
        }
        for place in range(number)
    ]


def test_invalid_runs_are_refused_before_the_start(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([], "origin string, delay double, at timestamp, __partition int, __offset bigint")

    def run(build: Any, tables: Any = str(tmp_path / "t"), given: DataFrame = frame) -> None:
        builder = StreamsBuilder()
        build(builder.stream("flights", key_columns=["origin"], timestamp="at"))
        run_batch(builder.build(), spark, tables=tables, inputs={"flights": given})

    with pytest.raises(UsageError, match=r"KSTREAM-SINK-0000000001: the brokers of topic out are unknown: give"):
        run(lambda s: s.to("out"), tables=None)
    with pytest.raises(UsageError, match="the path of table t is unknown"):
        run(lambda s: s.to_delta("t"), tables=None)
    with pytest.raises(TopologyError, match="needs a long column __offset"):
        run(lambda s: s.to_delta("t"), given=frame.drop("__offset"))
    assert not (tmp_path / "t").exists()


def test_a_table_with_other_columns_is_refused_and_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    disordered_files(source, files=1, rows_max=10)
    spark.range(3).write.format("delta").save(str(tmp_path / "tables" / "hours"))
    with pytest.raises(TopologyError, match=r"has the columns id LongType\(\), but the topology gives origin"):
        run_stream(
            topology(),
            spark,
            checkpoint=str(tmp_path / "checkpoint"),
            tables=paths(tmp_path / "tables"),
            inputs={"flights": stream_of(spark, source)},
            available_now=True,
        )


def test_explain_says_what_runs_where() -> None:
    plan = TopologyTestDriver(topology()).plan
    assert "stateful: transformWithState" in explain(plan)


def test_spark_places_buckets_in_the_computed_partitions(spark: SparkSession) -> None:
    buckets = spark.range(2 * len(places())).selectExpr("cast(id AS INT) AS bucket")
    placed = buckets.select("bucket", spread(buckets["bucket"]).alias("place"))
    rows = placed.selectExpr("bucket", "place", "pmod(hash(place), 64) AS partition").collect()
    assert len({row.place for row in rows}) == len(rows)
    assert all(row.partition == row.bucket % PARTITIONS_MAX for row in rows if row.bucket < len(places()))


@pytest.mark.parametrize("stages", ["no stage", "a stage with state"])
def test_only_the_first_piece_of_a_tasks_results_is_collected_into_the_driver(spark: SparkSession, stages: str) -> None:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key="long", value="long").filter(lambda number: number % 1000 == 0)
    kept = numbers if stages == "no stage" else numbers.group_by_key().count().to_stream()
    kept.to("kept")
    collected = {}
    for rows in (ROWS_PER_PAYLOAD // 2, 2 * ROWS_PER_PAYLOAD + 1000):
        columns = [
            "id AS key",
            "id AS value",
            "id AS __offset",
            "0 AS __partition",
            "timestamp_millis(id) AS __timestamp",
        ]
        frame = spark.range(0, rows, 1, 1).selectExpr(*columns)
        job = Job.prepare(builder.build(), JobInputs(frames={"numbers": frame}))
        packed = bounded_results(job, spark).persist()
        try:
            results = Results.of(packed, job.plan, job.buckets)
            [sink] = job.plan.outputs
            assert results.counts.records == rows
            assert results.counts.rows[sink.name] == -(-rows // 1000)
            collected[rows] = len(results.payloads.get(sink.name, ()))
            assert results.unpacked(sink.name, job.plan.layouts[sink.name]).count() == -(-rows // 1000)
        finally:
            packed.unpersist()
    assert list(collected.values()) == [1, 0]


def test_only_as_many_tasks_as_buckets_and_sources_are_collected_into_the_driver(spark: SparkSession) -> None:
    builder = StreamsBuilder()
    first = builder.stream("first", key="long", value="long")
    first.merge(builder.stream("second", key="long", value="long")).to("both")
    frame = spark.range(0).selectExpr("id AS key", "id AS value", "timestamp_millis(id) AS __timestamp")
    job = Job.prepare(builder.build(), JobInputs(frames={"first": frame, "second": frame}))
    [sink] = job.plan.outputs
    for tasks, collected in ((2 * job.buckets, 2 * job.buckets), (2 * job.buckets + 1, 0)):
        rows = spark.range(0, tasks, 1, tasks).selectExpr(
            f"'{sink.name}' AS target",
            "1L AS rows",
            "1L AS records",
            "0L AS dropped",
            "X'00' AS payload",
            "true AS is_first",
        )
        results = Results.of(rows, job.plan, job.buckets)
        assert results.counts.rows[sink.name] == tasks
        assert len(results.payloads.get(sink.name, ())) == collected


def test_no_connection_is_left_open_by_a_micro_batch(
    spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    # Spark 4.2.0 does not close the connections between its state store and the workers.
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    with Admin(module_broker.bootstrap_servers) as admin, Producer(module_broker.bootstrap_servers) as producer:
        admin.create_topic("dripping", partitions=1)
        for number in range(24):
            producer.send("dripping", b"x", key=str(number).encode())
    builder = StreamsBuilder()
    builder.stream("dripping", key="string", value="bytes").group_by_key().count().to_stream().to("seen")
    open_sockets: list[int] = []

    def look(_: Any) -> None:
        listed = subprocess.run(["ls", "-l", f"/proc/{jvm}/fd"], capture_output=True, text=True, check=False).stdout
        open_sockets.append(listed.count("-> socket:"))

    query = run_stream(
        builder.build(),
        spark,
        checkpoint=str(tmp_path / "checkpoint"),
        bootstrap_servers=module_broker.bootstrap_servers,
        options={"maxOffsetsPerTrigger": 1},
        available_now=True,
        foreach_batch={"seen": lambda rows, _: rows.collect()},
        on_batch=look,
    )
    finish(query)
    assert len(open_sockets) == 24
    assert min(open_sockets) > 0
    assert max(open_sockets[12:]) <= open_sockets[11] + 6, open_sockets
