"""Streaming ingest of topics into a Delta table.

No rows pass through the JVM.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.errors import UsageError
from pyspark_millrace.delta.compaction import Compaction, Compactor
from pyspark_millrace.delta.data_files import FILE_DDL, DataFiles
from pyspark_millrace.delta.partition_values import check_partition_columns
from pyspark_millrace.delta.remote import facts_by_task, query_id_in_checkpoint
from pyspark_millrace.delta.table import MicroBatch, NewFile, TableRequest, TargetTable
from pyspark_millrace.delta.transactions import check_delta, query_id_of
from pyspark_millrace.interruption import interrupted_in_few_words
from pyspark_millrace.source import DefaultSource
from pyspark_millrace.spark_connect import is_connect
from pyspark_millrace.transform import Transform, encode_transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IngestedBatch:
    """A micro-batch that the table holds.

    ``table_version`` is ``None`` for a batch without rows, and for a batch that the table already held.
    """

    batch_id: int
    rows: int
    files: int
    size_bytes: int
    seconds: float
    table_version: int | None


def ingest(
    spark: SparkSession,
    options: Mapping[str, object],
    table: str,
    *,
    checkpoint: str,
    partition_by: Sequence[str] = (),
    transform: Transform | None = None,
    transform_schema: StructType | None = None,
    merge_schema: bool = False,
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    on_batch: Callable[[IngestedBatch], None] | None = None,
    compaction: Compaction | None = None,
) -> StreamingQuery:
    """Start a streaming query that writes records of topics into a Delta table, exactly once.

    ``options`` are the options of the source. ``table`` is a path or ``file:`` URI on a file system that the driver and
    every executor can reach. A table that does not exist is created, partitioned by ``partition_by``. ``transform`` is
    applied to the record batches of each task before they are written, and yields batches of ``transform_schema``.
    ``merge_schema`` allows new columns in the table. ``trigger`` has the arguments of ``DataStreamWriter.trigger``, by
    default ``{"availableNow": True}``. ``on_batch`` is called after every batch; Spark's own progress counts files
    instead of rows. ``compaction`` makes Spark compact small files between batches, and needs a session with Delta.

    Through Spark Connect, the paths of table and checkpoint are resolved in the cluster, and a copy of ``on_batch`` is
    called there.

    Raises ``UsageError`` or ``SchemaMismatchError`` before any record is read if the options or the table are wrong.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    given = {name.lower(): str(value) for name, value in options.items() if value is not None}
    remote = is_connect(spark)
    if remote and compaction is not None:
        raise UsageError("compaction is not supported over Spark Connect: run OPTIMIZE on the table")
    schema = _schema(spark, given, transform, transform_schema)
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    check_partition_columns(arrow_schema, partition_by)
    request = TableRequest(table, json.loads(schema.json()), tuple(partition_by), merge_schema)
    target = None if remote else request.open()
    facts = facts_by_task(spark, request) if target is None else target.facts
    # An existing table may have other partition columns.
    check_partition_columns(arrow_schema, facts.partition_by)
    if transform is None:
        # The tasks read the columns that were checked against the table, even if the topics have more columns by then.
        given |= {"columns": ",".join(schema.names)}
        for name in ("includeheaders", "includemetadata"):  # "columns" names those that were requested
            given.pop(name, None)
    files = DataFiles(facts.directory, arrow_schema, facts.partition_by, facts.indexed_columns, before=transform)
    given |= {"transform": encode_transform(files), "transformSchema": FILE_DDL}
    if compaction is not None:
        check_delta(spark)
    commit = _Commit(
        request,
        target,
        partial(query_id_in_checkpoint, checkpoint=checkpoint) if remote else _query_id,
        on_batch,
        None if compaction is None else Compactor(compaction, facts.directory),
    )
    writer = spark.readStream.format("millrace").options(**given).load().writeStream.foreachBatch(commit)
    writer = writer.option("checkpointLocation", checkpoint).trigger(**(trigger or {"availableNow": True}))
    return (writer.queryName(query_name) if query_name else writer).start()


class _Commit:
    """Function of ``foreachBatch`` that commits the files of a micro-batch.

    The rows of the micro-batch describe its files. Spark may call the function again for a batch that Spark has not
    logged yet.
    """

    def __init__(
        self,
        request: TableRequest,
        target: TargetTable | None,
        query_id_of: Callable[[SparkSession], str],
        on_batch: Callable[[IngestedBatch], None] | None,
        compactor: Compactor | None,
    ) -> None:
        self._request = request
        self._target = target
        self._query_id_of = query_id_of
        self._on_batch = on_batch
        self._compactor = compactor

    @interrupted_in_few_words()
    def __call__(self, described: DataFrame, batch_id: int) -> None:
        started = time.monotonic()
        batch = MicroBatch(self._query_id_of(described.sparkSession), batch_id)
        if self._target is None:
            # In Connect this code runs in another process, to which an open table cannot be sent.
            self._target = self._request.open()
        if self._target.has(batch):
            # An earlier run committed the batch but ended before Spark logged it. The batch is not read again.
            files, version = [], None
        else:
            files = [_new_file(row) for row in described.collect()]
            version = self._target.commit(batch, files) if files else None
        done = IngestedBatch(
            batch_id,
            rows=sum(file.rows for file in files),
            files=len(files),
            size_bytes=sum(file.size_bytes for file in files),
            seconds=time.monotonic() - started,
            table_version=version,
        )
        _log.info("%s: %s", self._target.directory, done)
        if self._on_batch is not None:
            self._on_batch(done)
        if self._compactor is not None:
            self._compactor.after(described.sparkSession, batch_id, done.size_bytes)


def _schema(
    spark: SparkSession, options: Mapping[str, str], transform: Transform | None, transform_schema: StructType | None
) -> StructType:
    for name in ("transform", "transformSchema"):
        if name.lower() in options:
            raise UsageError(f"option {name}: give the function to ingest() as its argument {name}")
    if (transform is None) != (transform_schema is None):
        raise UsageError("transform and transform_schema: give both or none")
    if transform_schema is None and is_connect(spark):
        loaded: StructType = spark.readStream.format("millrace").options(**options).load().schema
        return loaded
    # The source is called here, because Spark would start a Python process to ask it.
    schema = transform_schema or DefaultSource(dict(options)).schema()
    assert not isinstance(schema, str), "only a transformation's schema is text"
    return schema


def _query_id(spark: SparkSession) -> str:
    query_id = query_id_of(spark)
    if query_id is None:
        raise UsageError("the id of the query is unknown: a direct ingest commits in the query's own thread")
    return query_id


def _new_file(row: Row) -> NewFile:
    return NewFile(
        path=row["path"],
        partition_values=dict(row["partition_values"]),
        size_bytes=row["size_bytes"],
        modified_ms=row["modified_ms"],
        rows=row["rows"],
        statistics=row["statistics"],
    )
