"""Balance of the tasks of ``spark_skew``.

The figure is the longest task beside the median.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.spark import Outcome, Source, benchmark
from benchmarks.suite import spark_read_opaque

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="spark_skew_tasks",
    title="Longest task to the median one in reading a topic of which one partition holds 90 %",
    unit="times",
    higher_is_better=False,
    limit=1.3,
    topic="skewed",
    ours='read.format("millrace").option("columns", "value") .agg(sum(length(value))): executor run time of its tasks, '
    "the median of five reads, of which each takes about a second",
    peer='read.format("kafka") .agg(sum(length(value))): a task for each partition, its default',
)

_TASKS_MAX = 10_000
_READS = 5
"""Other load of the machine makes tasks of a quarter of a second uneven."""


def ours(spark: SparkSession, source: Source) -> Outcome:
    reads = [_spread(spark, spark_read_opaque.ours(spark, source)) for _ in range(_READS)]
    return replace(reads[0], figure=statistics.median(read.figure for read in reads if read.figure is not None))


def peer(spark: SparkSession, source: Source, **options: str) -> Outcome:
    return _spread(spark, spark_read_opaque.peer(spark, source, **options))


def _spread(spark: SparkSession, outcome: Outcome) -> Outcome:
    """Return the outcome of the last query, with the spread of its reading tasks as the figure."""
    took = _reading_tasks_ms(spark)
    return replace(outcome, figure=max(took) / statistics.median(took))


def _reading_tasks_ms(spark: SparkSession) -> list[int]:
    """Return the run times of the reading stage's tasks. Of the last query's stages it is the longest one.

    Adaptive execution makes two jobs of the query: one that reads, and one for its result.
    """
    context: Any = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()
    tracker = context.statusTracker()
    jobs = sorted(tracker.getJobIdsForGroup(None))[-2:]
    stages = [stage for job in jobs for stage in tracker.getJobInfo(job).stageIds]
    return max((_run_times_ms(context, stage) for stage in stages), key=sum)


def _run_times_ms(context: Any, stage: int) -> list[int]:
    found = context._jsc.sc().statusStore().taskList(stage, 0, _TASKS_MAX)
    metrics = [found.apply(number).taskMetrics() for number in range(found.size())]
    return [each.get().executorRunTime() for each in metrics if each.isDefined()]
