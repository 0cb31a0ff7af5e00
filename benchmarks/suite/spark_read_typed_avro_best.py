"""The read of ``spark_read_typed_avro`` beside Spark's Kafka source at its best.

The source decodes two columns of Avro, with larger fetches and polls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import data
from benchmarks.spark import KAFKA_TUNED, Outcome, Source, benchmark
from benchmarks.suite import spark_read_typed_avro

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_read_typed_avro_best",
    title="Spark batch: count and sum(amount) by word, two of five columns, beside Avro, each side at its best",
    target_ratio=6,
    topic="typed",
    ours=spark_read_typed_avro.BENCHMARK.ours.what,
    peer='read.format("kafka") from_avro(value, avroSchema of 2 columns) .groupBy("word").agg(count, sum(amount))'
    f" with {KAFKA_TUNED}",
    avro=True,
)

ours = spark_read_typed_avro.ours


def peer(spark: SparkSession, source: Source) -> Outcome:
    return spark_read_typed_avro.peer(spark, source, data.avro_schema(["word", "amount"]), **KAFKA_TUNED)
