"""Windowed count by another key than the topic's.

Each side is at its best.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import streams
from benchmarks.spark import Outcome, Source
from benchmarks.suite import streams_repartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = streams.benchmark(
    name="streams_repartition_best",
    title="Streams: count per minute by a key made of a column, through a repartition, each side at its best",
    mode="repartition",
    target_ratio=2,
    ours=streams_repartition.BENCHMARK.ours.what,
    peer=streams_repartition.BENCHMARK.peer.what,
    typed=True,
    batches="micro-batches of up to 4,000,000 records, the default where state is kept",
    tuned=True,
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    return streams_repartition.count_moved(spark, source, None)
