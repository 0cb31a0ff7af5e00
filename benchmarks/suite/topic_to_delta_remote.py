"""The stream of ``topic_to_delta`` over the network.

No task maps a segment file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import Outcome, Source, benchmark
from benchmarks.suite import topic_to_delta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="topic_to_delta_remote",
    title="Typed topic into a Delta table of five columns, AvailableNow, over the network",
    target_ratio=10,
    topic="typed",
    ours=topic_to_delta.BENCHMARK.ours.what + ", directReads=never",
    peer=topic_to_delta.BENCHMARK.peer.what,
)

peer = topic_to_delta.peer


def ours(spark: SparkSession, source: Source) -> Outcome:
    return topic_to_delta.ours(spark, source, directReads="never")
