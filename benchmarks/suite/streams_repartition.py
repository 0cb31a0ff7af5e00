"""Windowed count by another key than the topic's, with a repartition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import streams
from benchmarks.spark import Outcome, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = streams.benchmark(
    name="streams_repartition",
    title="Streams: count per minute by a key made of a column, through a repartition",
    mode="repartition",
    target_ratio=2,
    ours='run_stream of a typed topic: group_by(col("word").upper()).windowed_by(1 min, grace 30 min).count()',
    peer=".groupBy(word out of the JSON, in upper case).windowedBy(1 min, grace 30 min).aggregate(+1)",
    typed=True,
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    return count_moved(spark, source, streams.BATCH_RECORDS)


def count_moved(spark: SparkSession, source: Source, batch_records: int | None) -> Outcome:
    """Count by the new key in micro-batches of so many records. With ``None`` the runner chooses the size."""
    from millrace_streams import StreamsBuilder, col

    builder = StreamsBuilder()
    groups = builder.stream(source.topic).group_by(col("word").upper().alias("upper"))
    streams.counts_per_minute(groups, every=False).to_delta("counts")
    results = streams.Results("count", newest_of=("upper", "window_start"))
    return streams.run_stream(spark, source, builder.build(), "counts", results, batch_records)
