"""The round trips of ``kafka_rtm``, with a limit for our side."""

from __future__ import annotations

from benchmarks import real_time

BENCHMARK = real_time.benchmark(
    "kafka_rtm_limit",
    title="Spark's real-time mode between two topics, median of round trips, limit of our side",
    limit=5,
)
