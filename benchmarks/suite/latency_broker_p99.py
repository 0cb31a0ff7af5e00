"""99th percentile of the round trip of a single record."""

from __future__ import annotations

from benchmarks import round_trips

BENCHMARK = round_trips.benchmark(
    "latency_broker_p99", title="99th percentile of unbatched round trips: send, acknowledgement, read", percentile=99
)
