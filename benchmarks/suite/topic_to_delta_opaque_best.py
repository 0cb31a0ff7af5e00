"""The stream of ``topic_to_delta_opaque``, each side at its best.

The sides use larger fetches, and checkpoints by plain renames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import KAFKA_TUNED, Outcome, Source, benchmark
from benchmarks.suite import topic_to_delta_opaque

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="topic_to_delta_opaque_best",
    title="Opaque topic into a Delta table: key, value, partition, offset, timestamp, each side at its best",
    target_ratio=4,
    topic="opaque",
    ours=topic_to_delta_opaque.BENCHMARK.ours.what,
    peer=topic_to_delta_opaque.BENCHMARK.peer.what + f" with {KAFKA_TUNED}",
    low_latency=True,
)

ours = topic_to_delta_opaque.ours


def peer(spark: SparkSession, source: Source) -> Outcome:
    return topic_to_delta_opaque.peer(spark, source, **KAFKA_TUNED)
