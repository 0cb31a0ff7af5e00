"""Changes by key from a topic into a Delta table.

The table has a million rows. Micro-batches have a fixed number of changes. Our side is ``foreachBatch(upsert(...))``.
The peer follows the documentation of Delta: ``foreachBatch`` with the latest change of each key and a MERGE. Both sides
read the same JSON, parse it by the same expression, and write into a copy of the same table. The keys of a batch are
spread over the whole table. Nine in ten changes update a row, one in twenty deletes a row, and some insert one. The
figure is the median time of a micro-batch (Spark's ``triggerExecution``), without the first one of a query. The tables
of both sides must have the same rows and sum.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks import data
from benchmarks.harness import Benchmark, Context, Measure, Side
from benchmarks.ours import SETTINGS as OUR_SETTINGS
from benchmarks.peers.kafka import SETTINGS as KAFKA_SETTINGS
from benchmarks.spark import (
    CLUSTER_CONF,
    CLUSTER_SETTINGS,
    KAFKA_TUNED,
    SPARK_SETTINGS,
    Outcome,
    Source,
    kafka_stream,
    measured,
    millrace_stream,
    timed,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE_ROWS = 1_000_000
_FILES = 4
_KEYS = TABLE_ROWS * 102 // 100
"""About one change in fifty has a key that the table does not have."""
_FACTOR = 611_953
"""Has no common divisor with the number of keys, so the changes of a batch have different keys from the whole table."""
_COLUMNS = ("id", "word", "amount", "ts", "pad")


def benchmark(
    name: str,
    *,
    title: str,
    changes: int,
    batches: int,
    target_ratio: float | None = None,
    limit: float | None = None,
    cluster: bool = False,
    is_tuned: bool = False,
) -> Benchmark:
    """Make a benchmark of micro-batches of so many changes.

    With ``cluster``, tasks run in two executors at Spark's defaults. With ``is_tuned``, the peer is at its best.
    """
    spark_settings = CLUSTER_SETTINGS if cluster else SPARK_SETTINGS
    settings = f"{spark_settings}; {changes:,} changes a batch, a table of {TABLE_ROWS:,} rows in {_FILES} files"
    conf = CLUSTER_CONF if cluster else {}
    records = changes * batches

    @contextlib.contextmanager
    def open_ours(context: Context) -> Iterator[Measure]:
        topic = context.millrace.filled_topic(records)
        with measured(context, name, "ours", context.millrace.bootstrap, topic, records, conf=conf) as measure:
            yield measure

    @contextlib.contextmanager
    def open_peer(context: Context) -> Iterator[Measure]:
        topic = context.kafka.filled_topic(records)
        with measured(context, name, "peer", context.kafka.bootstrap, topic, records, conf=conf) as measure:
            yield measure

    return Benchmark(
        name=name,
        title=title,
        unit="ms",
        higher_is_better=False,
        target_ratio=target_ratio,
        limit=limit,
        ours=Side(
            what='readStream.format("millrace").option("maxOffsetsPerTrigger") .foreachBatch(upsert(table, key))',
            settings=OUR_SETTINGS + settings,
            open=open_ours,
        ),
        peer=Side(
            what='readStream.format("kafka").option("maxOffsetsPerTrigger") .foreachBatch(max_by, DeltaTable.merge)'
            + (f" with {KAFKA_TUNED} and broadcast(changes)" if is_tuned else ""),
            settings=KAFKA_SETTINGS + settings,
            open=open_peer,
        ),
    )


def ours(spark: SparkSession, source: Source, changes: int) -> Outcome:
    """Upsert the topic with ``upsert``."""
    from pyspark_millrace.delta import upsert

    reader = millrace_stream(spark, source).option("columns", "value,topic,partition,offset")
    table = _new_table(spark, source)
    into = upsert(table, key=["id"], delete_when="op = 'd'", drop=["op", "topic", "partition", "offset"])
    return _merged(reader.option("maxOffsetsPerTrigger", changes).load(), source, table, into)


def peer(spark: SparkSession, source: Source, changes: int, *, is_tuned: bool = False) -> Outcome:
    """Upsert the topic with Spark's Kafka source and Delta's MERGE."""
    table = _new_table(spark, source)

    def merge(rows: DataFrame, _: int) -> None:
        from delta.tables import DeltaTable
        from pyspark.sql import functions as F  # noqa: N812

        newest = F.max_by(F.struct(*_COLUMNS, "op"), "offset").alias("newest")
        latest = rows.groupBy("id").agg(newest).select("newest.*")
        if is_tuned:
            latest = F.broadcast(latest)
        values = {name: f"new.{name}" for name in _COLUMNS}
        merging = (
            DeltaTable.forPath(rows.sparkSession, table).alias("kept").merge(latest.alias("new"), "kept.id = new.id")
        )
        merging = merging.whenMatchedDelete("new.op = 'd'").whenMatchedUpdate(set=values)
        merging.whenNotMatchedInsert("new.op <> 'd'", values=values).execute()

    options = KAFKA_TUNED if is_tuned else {}
    reader = kafka_stream(spark, source, **options).option("maxOffsetsPerTrigger", changes)
    return _merged(reader.load(), source, table, merge)


def _merged(frame: DataFrame, source: Source, table: str, write: Callable[[DataFrame, int], None]) -> Outcome:
    """Run a query over the whole topic that writes each batch by ``write``."""
    from pyspark.sql import functions as F  # noqa: N812

    spark = frame.sparkSession
    json = F.from_json(F.col("value").cast("string"), data.SPARK_DDL).alias("json")
    rows = frame.select(json, "topic", "partition", "offset").selectExpr(
        f"json.id * {_FACTOR} % {_KEYS} AS id",
        "json.word AS word",
        "json.amount AS amount",
        "json.ts AS ts",
        "json.pad AS pad",
        "IF(json.id % 20 = 0, 'd', 'u') AS op",
        "topic",
        "partition",
        "offset",
    )
    checkpoint = source.scratch / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    seconds, _ = timed(query.awaitTermination)
    times = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
    found = spark.read.format("delta").load(table).agg(F.count("*"), F.sum("amount")).head()
    # The answer does not include the number of batches, because the sources divide the limit of a batch differently.
    answer: list[Any] = [*(found or ())]
    return Outcome(seconds, source.records, answer, figure=statistics.median(times[1:] or times))


def _new_table(spark: SparkSession, source: Source) -> str:
    """Copy the table with which all runs begin, to a path that Delta has not seen before."""
    first, table = source.scratch / "first", source.scratch / f"table-{uuid.uuid4().hex[:8]}"
    if not first.exists():
        rows = spark.range(0, TABLE_ROWS, 1, _FILES).selectExpr(
            f"id * {_FACTOR} % {TABLE_ROWS} AS id",
            "concat('w', lpad(CAST(id % 1000 AS STRING), 4, '0')) AS word",
            "CAST(id AS DOUBLE) / 100 AS amount",
            f"{data.TIME_START_MS} + id AS ts",
            "substr(repeat('abcdefghijklmnopqrstuvwxyz', 2), 1 + CAST(id % 13 AS INT), 22) AS pad",
        )
        rows.write.format("delta").save(str(first))
    for earlier in source.scratch.glob("table-*"):
        shutil.rmtree(earlier)
    shutil.copytree(first, table)
    return str(table)
