"""The same read as ``spark_read_typed``, beside Avro in Kafka.

Neither side reads values as text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import data
from benchmarks.spark import Outcome, Source, benchmark
from benchmarks.suite import spark_read_typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_read_typed_avro",
    title="Spark batch: count and sum(amount) by word, two of five columns, beside Avro",
    target_ratio=6,
    topic="typed",
    ours=spark_read_typed.BENCHMARK.ours.what,
    peer='read.format("kafka") from_avro(value, 5 columns) .groupBy("word").agg(count, sum(amount))',
    avro=True,
)

ours = spark_read_typed.ours


def peer(spark: SparkSession, source: Source, wanted: str | None = None, **options: str) -> Outcome:
    """Read Kafka's topic. ``wanted`` is the schema of the decoded columns, or all columns without it."""
    from pyspark.sql.avro.functions import from_avro

    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", source.bootstrap).options(**options)
    raw = reader.option("subscribe", source.topic).load()
    how = {"avroSchema": wanted} if wanted else {}
    parsed = raw.select(from_avro("value", data.avro_schema(), how).alias("record"))
    return spark_read_typed.aggregate(parsed.select("record.word", "record.amount"))
