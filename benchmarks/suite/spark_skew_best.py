"""The same read as ``spark_skew``, beside Spark's Kafka source that splits partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import KAFKA_TUNED, Outcome, Source, benchmark
from benchmarks.suite import spark_read_opaque

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_PARTITIONS = "20"
"""Spark's Kafka source has at least so many tasks, most of them for the partition of nine tenths."""

BENCHMARK = benchmark(
    name="spark_skew_best",
    title="Spark batch: sum of lengths, of a topic of which one partition holds 90 %, each side at its best",
    target_ratio=4.2,
    topic="skewed",
    ours=spark_read_opaque.BENCHMARK.ours.what,
    peer='read.format("kafka").option("minPartitions", 20) .agg(sum(length(value)))' + f" with {KAFKA_TUNED}",
)

ours = spark_read_opaque.ours


def peer(spark: SparkSession, source: Source) -> Outcome:
    return spark_read_opaque.peer(spark, source, minPartitions=MIN_PARTITIONS, **KAFKA_TUNED)
