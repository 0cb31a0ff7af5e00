"""The read of ``kafka_spark_typed`` beside a tuned Kafka source.

Spark's Kafka source has larger fetches and polls.
"""

from __future__ import annotations

from benchmarks.spark import benchmark
from benchmarks.suite import kafka_spark_typed, spark_read_typed_best

BENCHMARK = benchmark(
    name="kafka_spark_typed_best",
    title=kafka_spark_typed.BENCHMARK.title + ", each side at its best",
    target_ratio=18,
    topic="typed-json",
    ours=kafka_spark_typed.BENCHMARK.ours.what,
    peer=spark_read_typed_best.BENCHMARK.peer.what,
)

ours = kafka_spark_typed.ours
peer = spark_read_typed_best.peer
