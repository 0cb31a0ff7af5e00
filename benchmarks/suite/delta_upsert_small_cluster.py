"""Micro-batches of 150 changes by key, with two executors.

The changes go into a Delta table of a million rows. The executors are at Spark's defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import upserts
from benchmarks.spark import Outcome, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = 150
BENCHMARK = upserts.benchmark(
    "delta_upsert_small_cluster",
    title="150 changes a batch merged into a Delta table of a million rows: the median micro-batch, two executors",
    changes=CHANGES,
    batches=12,
    limit=1500,
    cluster=True,
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    return upserts.ours(spark, source, CHANGES)


def peer(spark: SparkSession, source: Source) -> Outcome:
    return upserts.peer(spark, source, CHANGES)
