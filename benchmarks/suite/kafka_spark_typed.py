"""Aggregates of two columns of a typed topic, beside JSON in Kafka.

A Kafka producer filled the typed topic with JSON.
"""

from __future__ import annotations

from benchmarks.spark import benchmark
from benchmarks.suite import spark_read_typed

BENCHMARK = benchmark(
    name="kafka_spark_typed",
    title="Spark batch: count and sum(amount) by word of a typed topic that a Kafka producer filled with JSON",
    target_ratio=18,
    topic="typed-json",
    ours='read.format("millrace").option("columns", "word,amount") .groupBy("word").agg(count, sum(amount))',
    peer='read.format("kafka") from_json(value, 5 columns) .groupBy("word").agg(count, sum(amount))',
)

ours = spark_read_typed.ours
peer = spark_read_typed.peer
