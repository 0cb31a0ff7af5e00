"""The read of ``spark_read_opaque`` beside a tuned Kafka source.

Spark's Kafka source has larger fetches and polls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import KAFKA_TUNED, Outcome, Source, benchmark
from benchmarks.suite import spark_read_opaque

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_read_opaque_best",
    title="Spark batch: sum of the lengths of an opaque topic's values, each side at its best",
    target_ratio=4.2,
    topic="opaque",
    ours=spark_read_opaque.BENCHMARK.ours.what,
    peer=spark_read_opaque.BENCHMARK.peer.what + f" with {KAFKA_TUNED}",
)

ours = spark_read_opaque.ours


def peer(spark: SparkSession, source: Source) -> Outcome:
    return spark_read_opaque.peer(spark, source, **KAFKA_TUNED)
