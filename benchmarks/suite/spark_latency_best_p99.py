"""99th percentile of the time to a row in foreachBatch.

The time begins when the record is produced. Each side is at its best.
"""

from __future__ import annotations

from benchmarks import trickle

BENCHMARK = trickle.benchmark(
    "spark_latency_best_p99",
    title="99th percentile of a trickle's micro-batch latency: seen in foreachBatch; each side at its best",
    percentile=99,
    target_ratio=2,
    recommended=True,
)
