"""Median time of a topology's micro-batch in the low-latency profile.

A hundred records a second arrive in one partition.
"""

from __future__ import annotations

from benchmarks import streams_latency

BENCHMARK = streams_latency.benchmark(
    "streams_latency_best",
    title="Streams: a micro-batch at 100 records/s, one partition, profile low-latency (the peer: a record)",
    limit=150,
    low_latency=True,
)
