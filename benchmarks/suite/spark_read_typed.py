"""Aggregates of two of a record's five columns in Spark batches.

Our side is a typed topic, and the peer is JSON in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.data import SPARK_DDL
from benchmarks.spark import Outcome, Source, benchmark, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = benchmark(
    name="spark_read_typed",
    title="Spark batch: count and sum(amount) by word, two of five columns",
    target_ratio=18,
    topic="typed",
    ours='read.format("millrace").option("columns", "word,amount") .groupBy("word").agg(count, sum(amount))',
    peer='read.format("kafka") from_json(value, 5 columns) .groupBy("word").agg(count, sum(amount))',
)


def ours(spark: SparkSession, source: Source, **options: str) -> Outcome:
    reader = spark.read.format("millrace").option("kafka.bootstrap.servers", source.bootstrap).options(**options)
    return aggregate(reader.option("subscribe", source.topic).option("columns", "word,amount").load())


def peer(spark: SparkSession, source: Source, **options: str) -> Outcome:
    from pyspark.sql import functions as F  # noqa: N812

    raw = spark.read.format("kafka").option("kafka.bootstrap.servers", source.bootstrap).options(**options)
    parsed = (
        raw.option("subscribe", source.topic)
        .load()
        .select(F.from_json(F.col("value").cast("string"), SPARK_DDL).alias("record"))
    )
    return aggregate(parsed.select("record.word", "record.amount"))


def aggregate(frame: DataFrame) -> Outcome:
    """Return the number of words and records, and the sum of the amounts."""
    from pyspark.sql import functions as F  # noqa: N812

    groups = frame.groupBy("word").agg(F.count("*").alias("records"), F.sum("amount").alias("amount"))
    total = groups.agg(F.count("*"), F.sum("records"), F.sum("amount"))
    seconds, rows = timed(total.collect)
    words, records, amount = rows[0]
    return Outcome(seconds, records, [words, records, amount])
