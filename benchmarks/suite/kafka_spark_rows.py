"""Read of a topic from a Kafka producer in a Spark batch.

Our source reads from millrace, and Spark's source reads from Kafka.
"""

from __future__ import annotations

from benchmarks.spark import benchmark
from benchmarks.suite import spark_read_opaque

BENCHMARK = benchmark(
    name="kafka_spark_rows",
    title="Spark batch: sum of the lengths of the values of a topic that a Kafka producer filled",
    target_ratio=3,
    topic="rows",
    ours='read.format("millrace").option("columns", "value") .agg(sum(length(value)))',
    peer='read.format("kafka") .agg(sum(length(value)))',
)

ours = spark_read_opaque.ours
peer = spark_read_opaque.peer
