"""The read of ``spark_read_typed`` over the network.

No task maps a segment file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import Outcome, Source, benchmark
from benchmarks.suite import spark_read_typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_read_typed_remote",
    title="Spark batch: count and sum(amount) by word, two of five columns, over the network",
    target_ratio=18,
    topic="typed",
    ours=spark_read_typed.BENCHMARK.ours.what + ", directReads=never",
    peer=spark_read_typed.BENCHMARK.peer.what,
)

peer = spark_read_typed.peer


def ours(spark: SparkSession, source: Source) -> Outcome:
    return spark_read_typed.ours(spark, source, directReads="never")
