"""Median time from producing a record to its row in foreachBatch.

Each side is at its best.
"""

from __future__ import annotations

from benchmarks import trickle

BENCHMARK = trickle.benchmark(
    "spark_latency_best",
    title="Median of a trickle's micro-batch latency: produced, then seen in foreachBatch; each side at its best",
    percentile=50,
    target_ratio=2,
    recommended=True,
)
