"""Join of each record with the table row of its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import streams
from benchmarks.spark import Outcome, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = streams.benchmark(
    name="streams_join",
    title="Streams: stream joined with a table of ten thousand rows",
    mode="join",
    target_ratio=1.5,
    ours="run_stream: stream.join(table, left().length() * right())",
    peer="stream.join(table, (value, weight) -> value.length * weight).foreach()",
    batches="micro-batches of up to 4,000,000 records, the default",
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    from millrace_streams import StreamsBuilder, left, right

    builder = StreamsBuilder()
    weights = builder.table(streams.WEIGHTS, key="string", value="long")
    events = builder.stream(source.topic, key="string", value="string")
    events.join(weights, left().length() * right()).to("products")
    results = streams.Results("value")
    return streams.run_stream(spark, source, builder.build(), "products", results, batch_records=None)
