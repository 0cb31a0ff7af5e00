"""How evenly the work of ``spark_skew`` is shared: the longest task beside the median one."""

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
    ours='read.format("millrace").option("columns", "value") .agg(sum(length(value))): executor run time of its tasks',
    peer='read.format("kafka") .agg(sum(length(value))): a task for each partition, its default',
)


def ours(spark: SparkSession, source: Source) -> Outcome:
    return _spread(spark, spark_read_opaque.ours(spark, source))


def peer(spark: SparkSession, source: Source) -> Outcome:
    return _spread(spark, spark_read_opaque.peer(spark, source))


def _spread(spark: SparkSession, outcome: Outcome) -> Outcome:
    """The outcome of the last query, with the spread of the tasks that read as its figure."""
    took = _longest_stage_ms(spark)
    return replace(outcome, figure=max(took) / statistics.median(took))


def _longest_stage_ms(spark: SparkSession) -> list[int]:
    """The run times of the tasks of the last job's first stage, which is the one that reads."""
    context: Any = spark.sparkContext
    store = context._jsc.sc().statusStore()
    tracker = context.statusTracker()
    job = max(tracker.getJobIdsForGroup(None))
    stages = [stage for number in range(job, -1, -1) for stage in tracker.getJobInfo(number).stageIds]
    return next(found for stage in sorted(stages, reverse=True) if (found := _read_tasks(store, stage)))


def _read_tasks(store: Any, stage: int) -> list[int]:
    """Run times of a stage's tasks if these have read rows; none otherwise."""
    found = store.taskList(stage, 0, 10_000)
    metrics = [found.apply(number).taskMetrics().get() for number in range(found.size())]
    if not any(each.inputMetrics().recordsRead() for each in metrics):
        return []
    return [each.executorRunTime() for each in metrics]
