"""Read of a topic of opaque 100-byte values in a Spark batch.

The batch sums the lengths of the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import Outcome, Source, benchmark, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = benchmark(
    name="spark_read_opaque",
    title="Spark batch: sum of the lengths of an opaque topic's values",
    target_ratio=4.2,
    topic="opaque",
    ours='read.format("millrace").option("columns", "value") .agg(sum(length(value)))',
    peer='read.format("kafka") .agg(sum(length(value)))',
)


def ours(spark: SparkSession, source: Source, **options: str) -> Outcome:
    reader = spark.read.format("millrace").option("kafka.bootstrap.servers", source.bootstrap).options(**options)
    return sum_lengths(reader.option("subscribe", source.topic).option("columns", "value").load())


def peer(spark: SparkSession, source: Source, **options: str) -> Outcome:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", source.bootstrap).options(**options)
    return sum_lengths(reader.option("subscribe", source.topic).load())


def sum_lengths(frame: DataFrame) -> Outcome:
    """Return number and length of the values."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    seconds, rows = timed(frame.agg(F.sum(F.length("value")), F.count("value")).collect)
    length, count = rows[0]
    return Outcome(seconds, count, length)
