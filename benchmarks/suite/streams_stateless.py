"""A filter and a computed value, without state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import streams
from benchmarks.spark import Outcome, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = streams.benchmark(
    name="streams_stateless",
    title="Streams: filter and map, with expressions on a typed topic against JSON parsed",
    mode="stateless",
    target_ratio=3,
    ours='run_stream of a typed topic: filter(col("amount") >= 900).select(gross=col("amount") * 1.19)',
    peer=".mapValues(amount out of the JSON, Jackson).filter(>= 900).mapValues(* 1.19).foreach()",
    typed=True,
    batches="micro-batches of up to 10,000,000 records, the default where nothing is kept",
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    from millrace_streams import StreamsBuilder, col

    builder = StreamsBuilder()
    events = builder.stream(source.topic).filter(col("amount") >= 900)
    events.select(gross=col("amount") * 1.19).to("gross")
    results = streams.Results("gross")
    return streams.run_stream(spark, source, builder.build(), "gross", results, batch_records=None)
