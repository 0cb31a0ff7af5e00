"""Micro-batches of 150 changes by key into a Delta table.

The table has a million rows. Spark runs in one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import upserts
from benchmarks.spark import Outcome, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = 150
BENCHMARK = upserts.benchmark(
    "delta_upsert_small",
    title="150 changes a batch merged into a Delta table of a million rows: the median micro-batch, local[2]",
    changes=CHANGES,
    batches=12,
    limit=1500,
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    return upserts.ours(spark, source, CHANGES)


def peer(spark: SparkSession, source: Source) -> Outcome:
    return upserts.peer(spark, source, CHANGES)
