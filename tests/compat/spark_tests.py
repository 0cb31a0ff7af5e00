"""Tests of Spark's own Kafka connector against the broker at ``COMPAT_BOOTSTRAP``.

Each test compares every row with what it wrote. ``spark`` runs the file; its name keeps pytest from collecting it with
the tests of millrace.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

_BOOTSTRAP = os.environ.get("COMPAT_BOOTSTRAP", "")
_QUERY_SECONDS_MAX = 180
_ROWS = 5000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[2]").config("spark.jars", os.environ["COMPAT_SPARK_JARS"])
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W+", "-", request.node.name.removeprefix("test_"))
    return f"spark-{name}-{os.getpid()}"


def orders(spark: SparkSession, count: int = _ROWS, start: int = 0) -> DataFrame:
    key = fn.concat(fn.lit("k"), fn.col("id") % 97)
    return spark.range(start, start + count).select(key.alias("key"), fn.col("id").cast("string").alias("value"))


def pairs_of(count: int = _ROWS, start: int = 0) -> list[tuple[str, str]]:
    return sorted((f"k{number % 97}", str(number)) for number in range(start, start + count))


def write(frame: DataFrame, topic: str, **options: str) -> None:
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", _BOOTSTRAP)
    writer.options(**options).option("topic", topic).save()


def read(spark: SparkSession, **options: str) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", _BOOTSTRAP)
    return reader.option("startingOffsets", "earliest").options(**options).load()


def read_stream(spark: SparkSession, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", _BOOTSTRAP)
    return reader.option("startingOffsets", "earliest").option("subscribe", topic).options(**options).load()


def pairs(frame: DataFrame) -> list[tuple[str, str]]:
    rows = frame.select(fn.col("key").cast("string"), fn.col("value").cast("string")).collect()
    return sorted((row.key, row.value) for row in rows)


def copy_available(frame: DataFrame, directory: Path) -> DataFrame:
    """Copy all records that are there into a table, from a checkpoint, and return the whole table."""
    table = directory / "table"
    query = frame.writeStream.format("parquet").option("path", str(table))
    started = query.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    assert started.awaitTermination(_QUERY_SECONDS_MAX)
    return frame.sparkSession.read.parquet(str(table))


def test_batch_reads_what_batch_wrote(spark: SparkSession, topic: str) -> None:
    write(orders(spark), topic)
    frame = read(spark, subscribe=topic)
    assert pairs(frame) == pairs_of()
    by_partition = frame.groupBy("partition").agg(
        fn.min("offset").alias("first"), fn.max("offset").alias("last"), fn.count("*").alias("count")
    )
    assert all(row["first"] == 0 and row["last"] == row["count"] - 1 for row in by_partition.collect())
    assert frame.filter("topic is null or timestamp is null or timestampType != 0").count() == 0


def test_headers_nulls_and_partitions_are_read_as_written(spark: SparkSession, topic: str) -> None:
    header = "array(named_struct('key', 'h', 'value', cast({} as binary))) headers"
    frame = spark.sql(
        f"select cast(null as string) key, 'v' value, 0 partition, {header.format(repr('x'))} "
        f"union all select 'k', cast(null as string), 0, {header.format('null')}"
    )
    write(frame, topic, includeHeaders="true")
    found = read(spark, subscribe=topic, includeHeaders="true").collect()
    assert {row.partition for row in found} == {0}
    keyed = {bytes(row.key or b"-"): (row.value and bytes(row.value), row.headers[0].value) for row in found}
    assert keyed == {b"-": (b"v", b"x"), b"k": (None, None)}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_of_each_compression_are_read_as_written(spark: SparkSession, topic: str, codec: str) -> None:
    write(orders(spark, 1000), topic, **{"kafka.compression.type": codec})
    assert pairs(read(spark, subscribe=topic)) == pairs_of(1000)


def test_batch_reads_between_offsets_and_from_a_time(spark: SparkSession, topic: str) -> None:
    write(orders(spark, 400).withColumn("partition", (fn.col("value") % 2).cast("int")), topic)
    assigned = {"assign": json.dumps({topic: [0, 1]})}
    starting = json.dumps({topic: {"0": 10, "1": -2}})
    ending = json.dumps({topic: {"0": 50, "1": -1}})
    part = read(spark, **assigned, startingOffsets=starting, endingOffsets=ending)
    assert part.filter("partition = 0").count() == 40
    assert part.filter("partition = 1").count() == 200
    first = part.agg(fn.min("timestamp")).collect()[0][0]
    later_ms = int(first.timestamp() * 1000) + 3_600_000
    times = json.dumps({topic: {"0": later_ms, "1": 0}})
    options = {"startingOffsetsByTimestamp": times, "startingOffsetsByTimestampStrategy": "latest"}
    assert read(spark, **assigned, **options).count() == 200


def test_topics_of_a_pattern_are_read_with_minimum_partitions(spark: SparkSession, topic: str) -> None:
    for number in range(3):
        write(orders(spark, 100, 100 * number), f"{topic}-{number}")
    frame = read(spark, subscribePattern=f"{topic}-.*", minPartitions="16")
    assert pairs(frame) == pairs_of(300)
    assert frame.rdd.getNumPartitions() >= 12


def test_stream_continues_from_its_checkpoint(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    write(orders(spark), topic)
    assert pairs(copy_available(read_stream(spark, topic), tmp_path)) == pairs_of()
    write(orders(spark, 1000, _ROWS), topic)
    limited = read_stream(spark, topic, maxOffsetsPerTrigger="300")
    assert pairs(copy_available(limited, tmp_path)) == pairs_of(_ROWS + 1000)


def test_stream_copies_a_topic_to_another(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    write(orders(spark), topic)
    copied = read_stream(spark, topic, maxOffsetsPerTrigger="2000").select("key", "value").writeStream.format("kafka")
    copied = copied.option("kafka.bootstrap.servers", _BOOTSTRAP).option("topic", f"{topic}-copy")
    query = copied.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(_QUERY_SECONDS_MAX)
    assert len(query.recentProgress) >= 3
    assert pairs(read(spark, subscribe=f"{topic}-copy")) == pairs_of()


def test_running_stream_sees_new_records(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    write(orders(spark, 10), topic)
    found: list[tuple[str, str]] = []

    def collect(frame: DataFrame, _: int) -> None:
        found.extend(pairs(frame))

    query = read_stream(spark, topic).writeStream.foreachBatch(collect)
    started = query.option("checkpointLocation", str(tmp_path)).start()
    for number in range(1, 4):
        write(orders(spark, 10, 10 * number), topic)
        started.processAllAvailable()
    started.stop()
    assert sorted(found) == pairs_of(40)


def test_stream_counts_by_key(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    write(orders(spark), topic)
    counts = read_stream(spark, topic).groupBy("key").count()
    writer = counts.writeStream.outputMode("complete").format("memory").queryName("counts")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(_QUERY_SECONDS_MAX)
    rows: list[Any] = spark.table("counts").collect()
    assert len(rows) == 97
    assert sum(row["count"] for row in rows) == _ROWS


def test_missing_topic_fails(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    frame = read_stream(spark, topic, **{"kafka.allow.auto.create.topics": "false"})
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="UnknownTopicOrPartition"):
        query.start().awaitTermination(_QUERY_SECONDS_MAX)
