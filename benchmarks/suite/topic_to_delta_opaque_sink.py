"""The stream of ``topic_to_delta_opaque`` with Spark's Delta sink.

Both sides use Spark's own sink, and therefore the same Parquet writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import Outcome, Source, benchmark, kafka_stream, millrace_stream, stream_into_delta
from benchmarks.suite.topic_to_delta_opaque import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="topic_to_delta_opaque_sink",
    title="Opaque topic into a Delta table by Spark's own Delta sink, AvailableNow",
    target_ratio=1.5,
    topic="opaque",
    ours='readStream.format("millrace").option("columns", ...) .writeStream.format("delta").trigger(availableNow=True)',
    peer='readStream.format("kafka") .writeStream.format("delta").trigger(availableNow=True)',
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    reader = millrace_stream(spark, source).option("columns", "key,value,partition,offset,timestamp")
    return stream_into_delta(reader.load().selectExpr(*COLUMNS), source)


def peer(spark: SparkSession, source: Source) -> Outcome:
    return stream_into_delta(kafka_stream(spark, source).load().selectExpr(*COLUMNS), source)
