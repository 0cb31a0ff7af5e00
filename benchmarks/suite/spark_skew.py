"""The read of ``spark_read_opaque`` with skewed partitions.

One partition of the topic has nine tenths of the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import Outcome, Source, benchmark
from benchmarks.suite import spark_read_opaque

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_skew",
    title="Spark batch: sum of the lengths of the values of a topic of which one partition holds 90 %",
    target_ratio=6,
    topic="skewed",
    ours='read.format("millrace").option("columns", "value") .agg(sum(length(value)))',
    peer='read.format("kafka") .agg(sum(length(value))): a task for each partition, its default',
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    return spark_read_opaque.ours(spark, source)


def peer(spark: SparkSession, source: Source) -> Outcome:
    return spark_read_opaque.peer(spark, source)
