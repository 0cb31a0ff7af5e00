"""The same windowed count over all retained records, as one bounded run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import streams
from benchmarks.spark import Outcome, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = streams.benchmark(
    name="streams_window_replay",
    title="Streams: count per key and minute, replayed as a batch with partial aggregates",
    mode="window",
    target_ratio=5,
    ours="run_batch: group_by_key().windowed_by(1 min, grace 30 min).count()",
    peer=".groupByKey().windowedBy(1 min, grace 30 min).aggregate(+1).toStream().foreach()",
    batches="one bounded run",
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    from millrace_streams import StreamsBuilder

    builder = StreamsBuilder()
    groups = builder.stream(source.topic, key="string", value="bytes").group_by_key()
    streams.counts_per_minute(groups, every=False).to_delta("counts")
    results = streams.Results("count", newest_of=("key", "window_start"))
    return streams.run_batch(spark, source, builder.build(), "counts", results)
