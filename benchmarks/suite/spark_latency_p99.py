"""99th percentile of the time to a row in foreachBatch.

The time begins when the record is produced. Both sides have equal settings.
"""

from __future__ import annotations

from benchmarks import trickle

BENCHMARK = trickle.benchmark(
    "spark_latency_p99",
    title="99th percentile of a trickle's micro-batch latency: produced, then seen in foreachBatch; equal settings",
    percentile=99,
    target_ratio=1 / 1.1,
    recommended=False,
)
