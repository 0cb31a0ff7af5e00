"""Micro-batches of 10,000 changes by key into a Delta table.

The table has a million rows, and both sides have equal settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import upserts
from benchmarks.spark import Outcome, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = 10_000
BENCHMARK = upserts.benchmark(
    "delta_upsert",
    title="10,000 changes a batch merged into a Delta table of a million rows: the median micro-batch",
    changes=CHANGES,
    batches=6,
    target_ratio=2,
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    return upserts.ours(spark, source, CHANGES)


def peer(spark: SparkSession, source: Source) -> Outcome:
    return upserts.peer(spark, source, CHANGES)
