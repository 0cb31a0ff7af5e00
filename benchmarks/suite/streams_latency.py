"""Median time of a topology's micro-batch with four partitions.

A hundred records arrive in a second.
"""

from __future__ import annotations

from benchmarks import streams_latency

BENCHMARK = streams_latency.benchmark(
    "streams_latency",
    title="Streams: a micro-batch at 100 records/s, defaults (the peer: a record)",
    limit=350,
    low_latency=False,
)
