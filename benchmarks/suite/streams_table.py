"""Aggregation of a regrouped table by functions that add and subtract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import streams
from benchmarks.spark import Outcome, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = streams.benchmark(
    name="streams_table",
    title="Streams: table grouped anew, aggregated with Python adder and subtractor",
    mode="table",
    target_ratio=0.7,
    ours="run_stream: table.group_by((key[:3], value[97])).aggregate(int, adder, subtractor)",
    peer="table.groupBy((key.substring(0, 3), value[97])).aggregate(adder, subtractor)",
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    from millrace_streams import StreamsBuilder

    builder = StreamsBuilder()
    events = builder.table(source.topic, key="string", value="bytes")
    groups = events.group_by(lambda key, value: (key[:3], value[97]), key="string", value="long")
    sums = groups.aggregate(int, lambda key, value, sum: sum + value, lambda key, value, sum: sum - value)
    sums.to_delta("sums")
    results = streams.Results("value", newest_of=("key",))
    return streams.run_stream(spark, source, builder.build(), "sums", results)
