"""Windowed count of ten thousand keys.

Each micro-batch gives the newest results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import streams
from benchmarks.spark import Outcome, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = streams.benchmark(
    name="streams_window",
    title="Streams: count per key and minute, the last result of a micro-batch",
    mode="window",
    target_ratio=1.8,
    ours='run_stream: group_by_key().windowed_by(1 min, grace 30 min).count(emit="last")',
    peer=".groupByKey().windowedBy(1 min, grace 30 min).aggregate(+1).toStream().foreach()",
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    return count_windows(spark, source, streams.BATCH_RECORDS)


def count_windows(spark: SparkSession, source: Source, batch_records: int | None) -> Outcome:
    """Count per key and minute in micro-batches of so many records. With ``None`` the runner chooses the size."""
    from millrace_streams import StreamsBuilder

    builder = StreamsBuilder()
    groups = builder.stream(source.topic, key="string", value="bytes").group_by_key()
    streams.counts_per_minute(groups, every=False).to_delta("counts")
    results = streams.Results("count", newest_of=("key", "window_start"))
    return streams.run_stream(spark, source, builder.build(), "counts", results, batch_records)
