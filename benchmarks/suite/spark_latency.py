"""Median time from producing a record to its row in foreachBatch.

Both sides have equal settings.
"""

from __future__ import annotations

from benchmarks import trickle

BENCHMARK = trickle.benchmark(
    "spark_latency",
    title="Median of a trickle's micro-batch latency: produced, then seen in foreachBatch; equal settings",
    percentile=50,
    target_ratio=1 / 1.1,
    recommended=False,
)
