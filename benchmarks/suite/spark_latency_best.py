"""Median of the time from producing a record to its row in foreachBatch, ours with recommended settings."""

from __future__ import annotations

from benchmarks import trickle

BENCHMARK = trickle.benchmark(
    "spark_latency_best",
    title="Median of a trickle's micro-batch latency: to foreachBatch; ours with recommended settings",
    percentile=50,
    target_ratio=2,
    recommended=True,
)
