"""The micro-batches of ``delta_upsert`` beside a tuned peer.

Spark's Kafka source has larger fetches and polls. The MERGE sends the changes to all tasks, so that the table is not
shuffled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import upserts
from benchmarks.spark import Outcome, Source
from benchmarks.suite import delta_upsert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = upserts.benchmark(
    "delta_upsert_best",
    title=delta_upsert.BENCHMARK.title + ", each side at its best",
    changes=delta_upsert.CHANGES,
    batches=6,
    target_ratio=2,
    is_tuned=True,
)

ours = delta_upsert.ours


def peer(spark: SparkSession, source: Source) -> Outcome:
    return upserts.peer(spark, source, delta_upsert.CHANGES, is_tuned=True)
