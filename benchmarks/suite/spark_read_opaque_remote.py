"""The read of ``spark_read_opaque`` over the network.

No task maps a segment file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import Outcome, Source, benchmark
from benchmarks.suite import spark_read_opaque

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_read_opaque_remote",
    title="Spark batch: sum of the lengths of an opaque topic's values, over the network",
    target_ratio=4.2,
    topic="opaque",
    ours=spark_read_opaque.BENCHMARK.ours.what + ", directReads=never",
    peer=spark_read_opaque.BENCHMARK.peer.what,
)

peer = spark_read_opaque.peer


def ours(spark: SparkSession, source: Source) -> Outcome:
    return spark_read_opaque.ours(spark, source, directReads="never")
