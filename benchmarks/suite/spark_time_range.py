"""Read of one hundredth of a long topic by time.

Each side uses its timestamp options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import data
from benchmarks.spark import Outcome, Source, benchmark
from benchmarks.suite.spark_read_opaque import sum_lengths

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

TIMES = 5
"""The topic has five times the records of the run, which is 50 million by default."""

BENCHMARK = benchmark(
    name="spark_time_range",
    title="Spark batch: 1 % of a topic of 50 million records by time, with timestamp options",
    target_ratio=2,
    topic="opaque",
    times=TIMES,
    ours='read.format("millrace") startingTimestamp, endingTimestamp, columns=value .agg(sum(length(value)))',
    peer='read.format("kafka") startingTimestamp, endingTimestamp .agg(sum(length(value)))',
)


def time_range_ms(records: int) -> tuple[int, int]:
    """Return the first time of the middle hundredth, and the time after its last one."""
    span = records // data.RECORDS_PER_MS
    start = data.TIME_START_MS + span // 2
    return start, start + span // 100


def ours(spark: SparkSession, source: Source) -> Outcome:
    reader = spark.read.format("millrace").option("columns", "value")
    return _sum_of_range(reader, source)


def peer(spark: SparkSession, source: Source, **options: str) -> Outcome:
    return _sum_of_range(spark.read.format("kafka").options(**options), source)


def _sum_of_range(reader: DataFrameReader, source: Source) -> Outcome:
    start, end = time_range_ms(source.records)
    reader = reader.option("kafka.bootstrap.servers", source.bootstrap).option("subscribe", source.topic)
    return sum_lengths(reader.option("startingTimestamp", start).option("endingTimestamp", end).load())
