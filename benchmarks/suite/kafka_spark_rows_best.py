"""The read of ``kafka_spark_rows`` beside a tuned Kafka source.

Spark's Kafka source has larger fetches and polls.
"""

from __future__ import annotations

from benchmarks.spark import benchmark
from benchmarks.suite import kafka_spark_rows, spark_read_opaque_best

BENCHMARK = benchmark(
    name="kafka_spark_rows_best",
    title=kafka_spark_rows.BENCHMARK.title + ", each side at its best",
    target_ratio=3,
    topic="rows",
    ours=kafka_spark_rows.BENCHMARK.ours.what,
    peer=spark_read_opaque_best.BENCHMARK.peer.what,
)

ours = kafka_spark_rows.ours
peer = spark_read_opaque_best.peer
