"""Median of the round trip of a single record."""

from __future__ import annotations

from benchmarks import round_trips

BENCHMARK = round_trips.benchmark(
    "latency_broker", title="Median of unbatched round trips: send, acknowledgement, read", percentile=50
)
