"""The stream of ``topic_to_delta``, each side at its best.

The sides use Avro, larger fetches, and checkpoints by plain renames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import data
from benchmarks.spark import KAFKA_TUNED, Outcome, Source, benchmark, kafka_stream, stream_into_delta
from benchmarks.suite import topic_to_delta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="topic_to_delta_best",
    title="Typed topic into a Delta table of five columns, AvailableNow, each side at its best",
    target_ratio=6,
    topic="typed",
    ours=topic_to_delta.BENCHMARK.ours.what,
    peer='readStream.format("kafka") from_avro(value) .writeStream.format("delta").trigger(availableNow=True)'
    f" with {KAFKA_TUNED}",
    avro=True,
    low_latency=True,
)

ours = topic_to_delta.ours


def peer(spark: SparkSession, source: Source) -> Outcome:
    from pyspark.sql.avro.functions import from_avro

    raw = kafka_stream(spark, source, **KAFKA_TUNED).load()
    parsed = raw.select(from_avro("value", data.avro_schema()).alias("record"))
    return stream_into_delta(parsed.select("record.*"), source)
