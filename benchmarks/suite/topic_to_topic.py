"""Stream of an opaque topic into another with Trigger.AvailableNow.

Our side delivers exactly once, and Kafka's side at least once.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.spark import Outcome, Source, benchmark, kafka_stream, millrace_stream, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = benchmark(
    name="topic_to_topic",
    title="Opaque topic into another: key and value, AvailableNow",
    target_ratio=1.5,
    topic="opaque",
    ours='readStream.format("millrace") .writeStream.format("millrace").trigger(availableNow=True): exactly once',
    peer='readStream.format("kafka") .writeStream.format("kafka").trigger(availableNow=True): at least once',
)

PARTITIONS = 4
_runs = itertools.count()


def ours(spark: SparkSession, source: Source) -> Outcome:
    from millrace.clients import Admin

    target = f"copy-{next(_runs)}"
    with Admin(source.bootstrap) as admin:
        admin.create_topic(target, partitions=PARTITIONS)
        try:
            frame = millrace_stream(spark, source).option("columns", "key,value").load()
            return _copy(frame, "millrace", source, target, {})
        finally:
            admin.delete_topic(target)


def peer(
    spark: SparkSession, source: Source, reads: Mapping[str, str] | None = None, writes: Mapping[str, str] | None = None
) -> Outcome:
    """Copy with Spark's Kafka source and sink. ``reads`` and ``writes`` are options besides their defaults."""
    from confluent_kafka.admin import AdminClient, NewTopic

    target = f"copy-{next(_runs)}"
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    _wait(admin.create_topics([NewTopic(target, PARTITIONS, 1, config={"file.delete.delay.ms": "0"})]))
    try:
        frame = kafka_stream(spark, source, **(reads or {})).load().select("key", "value")
        return _copy(frame, "kafka", source, target, writes or {})
    finally:
        _wait(admin.delete_topics([target]))


def _copy(frame: DataFrame, name: str, source: Source, target: str, writes: Mapping[str, str]) -> Outcome:
    """Write a stream to a topic. The time is from start to termination, and the answer is the topic's final content."""
    checkpoint = source.scratch / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    options = {"kafka.bootstrap.servers": source.bootstrap, "topic": target, "checkpointLocation": str(checkpoint)}
    writer = frame.writeStream.format(name).options(**options, **writes).trigger(availableNow=True)
    seconds, _ = timed(lambda: writer.start().awaitTermination())
    reader = frame.sparkSession.read.format(name).option("kafka.bootstrap.servers", source.bootstrap)
    rows = reader.option("subscribe", target).load().selectExpr("count(*)", "sum(length(value))").first()
    return Outcome(seconds, rows[0], list(rows))


def _wait(futures: dict[str, Any]) -> None:
    for future in futures.values():
        future.result()
