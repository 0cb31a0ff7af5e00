"""The read of ``spark_time_range`` beside a tuned Kafka source.

Spark's Kafka source has larger fetches and polls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import KAFKA_TUNED, Outcome, Source, benchmark
from benchmarks.suite import spark_time_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_time_range_best",
    title="Spark batch: 1 % of a topic of 50 million records by time, each side at its best",
    target_ratio=2,
    topic="opaque",
    times=spark_time_range.TIMES,
    ours=spark_time_range.BENCHMARK.ours.what,
    peer=spark_time_range.BENCHMARK.peer.what + f" with {KAFKA_TUNED}",
)

ours = spark_time_range.ours


def peer(spark: SparkSession, source: Source) -> Outcome:
    return spark_time_range.peer(spark, source, **KAFKA_TUNED)
