"""Read a topic of opaque 100-byte values in a Spark batch without naming columns: all seven reach Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import Outcome, Source, benchmark
from benchmarks.suite import spark_read_opaque

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_read_opaque_all",
    title="Spark batch: sum of the lengths of an opaque topic's values, all seven columns read",
    # No goal of its own: Spark does not tell Python sources which columns a query uses, so what is not left out by
    # the option columns is handed over in vain. This is what it costs to say nothing.
    target_ratio=None,
    topic="opaque",
    ours='read.format("millrace") .agg(sum(length(value)))',
    peer='read.format("kafka") .agg(sum(length(value)))',
)

peer = spark_read_opaque.peer


def ours(spark: SparkSession, source: Source) -> Outcome:
    reader = spark.read.format("millrace").option("kafka.bootstrap.servers", source.bootstrap)
    return spark_read_opaque.sum_lengths(reader.option("subscribe", source.topic).load())
