"""Read of opaque 100-byte values in a Spark batch.

The batch reads all seven columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import Outcome, Source, benchmark
from benchmarks.suite import spark_read_opaque

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_read_opaque_all",
    title="Spark batch: sum of the lengths of an opaque topic's values, all seven columns read",
    # The goal is that of the read that names its column. Spark does not tell Python sources which columns a query uses,
    # so a query without the option ``columns`` gets all of them.
    target_ratio=4.2,
    topic="opaque",
    ours='read.format("millrace") .agg(sum(length(value)))',
    peer='read.format("kafka") .agg(sum(length(value)))',
)

peer = spark_read_opaque.peer


def ours(spark: SparkSession, source: Source) -> Outcome:
    reader = spark.read.format("millrace").option("kafka.bootstrap.servers", source.bootstrap)
    return spark_read_opaque.sum_lengths(reader.option("subscribe", source.topic).load())
