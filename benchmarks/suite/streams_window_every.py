"""Windowed count of ten thousand keys, with a result for each record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import streams
from benchmarks.spark import Outcome, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = streams.benchmark(
    name="streams_window_every",
    title="Streams: count per key and minute, every update",
    mode="window_every",
    target_ratio=1.3,
    ours='run_stream: group_by_key().windowed_by(1 min, grace 30 min).count(emit="every").to_stream()',
    peer=".groupByKey().windowedBy(1 min, grace 30 min).aggregate(+1).toStream().foreach()",
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    from millrace_streams import StreamsBuilder

    builder = StreamsBuilder()
    groups = builder.stream(source.topic, key="string", value="bytes").group_by_key()
    streams.counts_per_minute(groups, every=True).to_stream().to("updates")
    results = streams.Results("count")
    return streams.run_stream(spark, source, builder.build(), "updates", results)
