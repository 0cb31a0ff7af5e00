"""Median latency of a stateless query in Spark's real-time mode.

The latency is measured from Kafka's clients to Kafka's clients.
"""

from __future__ import annotations

from benchmarks import real_time

BENCHMARK = real_time.benchmark(
    "kafka_rtm",
    title="Spark's real-time mode between two topics, Spark's own source and sink, median of round trips",
    target_ratio=1 / 1.5,
)
