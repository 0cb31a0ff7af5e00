"""The read of ``spark_read_typed`` beside a tuned Kafka source.

Spark's Kafka source has larger fetches and polls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import KAFKA_TUNED, Outcome, Source, benchmark
from benchmarks.suite import spark_read_typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_read_typed_best",
    title="Spark batch: count and sum(amount) by word, two of five columns, each side at its best",
    target_ratio=18,
    topic="typed",
    ours=spark_read_typed.BENCHMARK.ours.what,
    peer=spark_read_typed.BENCHMARK.peer.what + f" with {KAFKA_TUNED}",
)

ours = spark_read_typed.ours


def peer(spark: SparkSession, source: Source) -> Outcome:
    return spark_read_typed.peer(spark, source, **KAFKA_TUNED)
