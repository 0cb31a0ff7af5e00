"""Windowed count of ten thousand keys, each side at its best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import streams
from benchmarks.spark import Outcome, Source
from benchmarks.suite import streams_window

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = streams.benchmark(
    name="streams_window_best",
    title="Streams: count per key and minute, each side at its best",
    mode="window",
    target_ratio=1.8,
    ours=streams_window.BENCHMARK.ours.what,
    peer=streams_window.BENCHMARK.peer.what,
    batches="micro-batches of up to 4,000,000 records, the default where state is kept",
    tuned=True,
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    return streams_window.count_windows(spark, source, None)
