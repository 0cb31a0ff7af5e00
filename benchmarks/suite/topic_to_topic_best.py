"""The stream of ``topic_to_topic``, each side at its best.

The sides use larger fetches and batches, and checkpoints by plain renames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import KAFKA_PRODUCER_TUNED, KAFKA_TUNED, Outcome, Source, benchmark
from benchmarks.suite import topic_to_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="topic_to_topic_best",
    title="Opaque topic into another: key and value, AvailableNow, each side at its best",
    target_ratio=1.5,
    topic="opaque",
    ours=topic_to_topic.BENCHMARK.ours.what,
    peer=topic_to_topic.BENCHMARK.peer.what + f" with {KAFKA_TUNED} and {KAFKA_PRODUCER_TUNED}",
    low_latency=True,
)

ours = topic_to_topic.ours


def peer(spark: SparkSession, source: Source) -> Outcome:
    return topic_to_topic.peer(spark, source, KAFKA_TUNED, KAFKA_PRODUCER_TUNED)
