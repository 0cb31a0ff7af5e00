"""Balance of the tasks of ``spark_skew_best``.

The peer is Spark's Kafka source, which splits partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.spark import KAFKA_TUNED, Outcome, Source, benchmark
from benchmarks.suite import spark_skew_best, spark_skew_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_skew_tasks_best",
    title="Longest task to the median one in reading a topic of which one partition holds 90 %, each side at its best",
    unit="times",
    higher_is_better=False,
    limit=1.3,
    topic="skewed",
    ours=spark_skew_tasks.BENCHMARK.ours.what,
    peer=spark_skew_best.BENCHMARK.peer.what,
)

ours = spark_skew_tasks.ours


def peer(spark: SparkSession, source: Source) -> Outcome:
    return spark_skew_tasks.peer(spark, source, minPartitions=spark_skew_best.MIN_PARTITIONS, **KAFKA_TUNED)
