"""Stream of a topic's fields into a Delta table with Trigger.AvailableNow.

Our side is a typed topic, and the peer is JSON in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.data import SPARK_DDL
from benchmarks.spark import Outcome, Source, benchmark, ingest_into_delta, kafka_stream, stream_into_delta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="topic_to_delta",
    title="Typed topic into a Delta table of five columns, AvailableNow",
    target_ratio=10,
    topic="typed",
    ours="pyspark_millrace.delta.ingest(...): the tasks write the files",
    peer='readStream.format("kafka") from_json(value) .writeStream.format("delta").trigger(availableNow=True)',
)


def ours(spark: SparkSession, source: Source, **options: str) -> Outcome:
    return ingest_into_delta(spark, source, options)


def peer(spark: SparkSession, source: Source) -> Outcome:
    from pyspark.sql import functions as F  # noqa: N812

    raw = kafka_stream(spark, source).load()
    parsed = raw.select(F.from_json(F.col("value").cast("string"), SPARK_DDL).alias("record"))
    return stream_into_delta(parsed.select("record.*"), source)
