"""Read of a hundredth of a topic by a time filter.

The topic is long. Only the filter excludes records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import Outcome, Source, benchmark
from benchmarks.suite.spark_read_opaque import sum_lengths
from benchmarks.suite.spark_time_range import TIMES, time_range_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_time_range_filter",
    title="Spark batch: 1 % of a topic of 50 million records by time, with a filter",
    target_ratio=20,
    topic="opaque",
    times=TIMES,
    ours='read.format("millrace") columns=value, filter="timestamp >= ... AND timestamp < ..." .agg(sum(length))',
    peer='read.format("kafka") .where("timestamp >= ... AND timestamp < ...").agg(sum(length))',
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    reader = spark.read.format("millrace").option("kafka.bootstrap.servers", source.bootstrap)
    reader = reader.option("subscribe", source.topic).option("columns", "value")
    return sum_lengths(reader.option("filter", _condition(source)).load())


def peer(spark: SparkSession, source: Source) -> Outcome:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", source.bootstrap)
    return sum_lengths(reader.option("subscribe", source.topic).load().where(_condition(source)))


def _condition(source: Source) -> str:
    start, end = (_literal(time_ms) for time_ms in time_range_ms(source.records))
    return f"timestamp >= {start} AND timestamp < {end}"


def _literal(time_ms: int) -> str:
    import datetime

    moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return f"TIMESTAMP '{moment.isoformat(timespec='milliseconds')}'"
