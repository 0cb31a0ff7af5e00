"""Merges of changes by key into a Delta table.

The size of a batch decides how it is merged. The driver collects a small batch. If the table allows a direct merge
(``direct_merge``), the driver does that. If not, Spark's MERGE gets the rows that the driver holds. A large batch is
merged by Spark and is not collected. The batch is read once.

Spark disables adaptive execution inside a stream, because state must stay in its partitions. A MERGE has no state.
Without adaptive execution, each of its shuffles has ``spark.sql.shuffle.partitions`` tasks, by default 200.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark_millrace.delta.direct_merge import DirectMerge, is_simple
from pyspark_millrace.delta.rewriting import Changes, last_of_each_key
from pyspark_millrace.delta.schemas import check_merged
from pyspark_millrace.delta.transactions import (
    Transaction,
    append_first,
    create_if_missing,
    is_empty,
    merge_rows,
    quoted,
    same_key,
)
from pyspark_millrace.session_settings import set_for_now
from pyspark_millrace.spark_connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

COLLECTED_BYTES_MAX: Final = 16 * 2**20
"""Largest size of a batch that the driver collects, in bytes of Spark's memory."""
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
_SNAPSHOT_PARTITIONS: Final = "spark.databricks.delta.snapshotPartitions"
_SNAPSHOT_PARTITIONS_MAX: Final = 50
"""Delta's own default for the number of partitions of a table's state."""
_MATERIALIZED: Final = "spark.databricks.delta.merge.materializeSource"
_BUCKETED: Final = "spark.sql.sources.bucketing.autoBucketedScan.enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTable:
    """Delta table into which batches are merged by key.

    ``path`` is the path of the table. ``deleted`` is a column of the changes that is true for those that delete.
    ``guard`` is a column; a change is skipped unless its value is larger than the value in the table's row.
    ``merge_schema`` allows new columns in the table.
    """

    path: str
    key: tuple[str, ...]
    deleted: str | None = None
    guard: str | None = None
    merge_schema: bool = False
    partition_by: tuple[str, ...] = ()

    def merge(
        self, rows: DataFrame, latest: Callable[[DataFrame], DataFrame] | None, transaction: Transaction
    ) -> int | None:
        """Merge the changes that ``latest`` returns for the rows of a batch, once for the transaction.

        ``latest`` returns each key once. Without it the rows are the changes. Of several rows with the same key, one is
        used. A table that does not exist is created. Returns the size of the added files in bytes, or ``None`` if it is
        unknown. Raises ``SchemaMismatchError`` when the table lacks columns and ``merge_schema`` is false, or when its
        columns have types of another kind.
        """
        spark, changes = rows.sparkSession, self._unique(rows, latest)
        written = changes.drop(self.deleted).schema if self.deleted is not None else changes.schema
        direct = None if is_connect(spark) else DirectMerge.open(spark, self.path)
        if direct is None:
            create_if_missing(spark, self.path, written, self.partition_by)
        if is_connect(spark) or not all(is_simple(field.dataType) for field in written):
            self._merge_by_spark(changes, written, transaction)
            return None
        with kept(rows) as batch:
            if batch.size_bytes > COLLECTED_BYTES_MAX:
                self._merge_by_spark(self._unique(batch.rows, latest), written, transaction)
                return None
            # One task, because a shuffle of so small a batch costs more.
            together = batch.rows.coalesce(1)
            if latest is not None:
                collected = latest(together).toArrow()
            else:
                collected = last_of_each_key(together.toArrow(), self.key)
        if direct is None:
            direct = DirectMerge.open(spark, self.path)
        small = Changes.of(collected, self.deleted, self.key, self.guard)
        added_bytes = None if direct is None else direct.merge(spark, written, small, transaction)
        if added_bytes is None:
            with set_for_now(spark, {_MATERIALIZED: "none"}):  # the rows are in the driver and do not change
                self._merge_by_spark(spark.createDataFrame(collected, changes.schema), written, transaction)
        return added_bytes

    def _unique(self, rows: DataFrame, latest: Callable[[DataFrame], DataFrame] | None) -> DataFrame:
        return rows.dropDuplicates(list(self.key)) if latest is None else latest(rows)

    def _merge_by_spark(self, changes: DataFrame, written: StructType, transaction: Transaction) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        spark = changes.sparkSession
        with fitted(spark):
            check_merged(spark, self.path, written, merge_schema=self.merge_schema)
            if is_empty(spark, self.path):
                new = changes
                if self.deleted is not None:
                    new = changes.where(~F.col(quoted(self.deleted))).drop(self.deleted)
                append_first(new, self.path, transaction, merge_schema=self.merge_schema)
            else:
                merge_rows(changes, self.path, same_key(self.key), transaction, self._clauses(written.names))

    def _clauses(self, columns: Sequence[str]) -> Callable[[Any], Any]:
        values = {quoted(name): f"new.{quoted(name)}" for name in columns}
        is_deleted = "false" if self.deleted is None else f"new.{quoted(self.deleted)}"
        newer = "true"
        if self.guard is not None:
            old, new = f"kept.{quoted(self.guard)}", f"new.{quoted(self.guard)}"
            newer = f"({old} IS NULL OR {new} > {old})"

        def clauses(merge: Any) -> Any:
            if self.merge_schema:
                merge = merge.withSchemaEvolution()
            if self.deleted is not None:
                merge = merge.whenMatchedDelete(f"{is_deleted} AND {newer}")
            return merge.whenMatchedUpdate(newer, values).whenNotMatchedInsert(f"NOT {is_deleted}", values)

        return clauses


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows in Spark's memory, with their size there."""

    rows: DataFrame
    size_bytes: int


@contextmanager
def kept(rows: DataFrame) -> Iterator[KeptRows]:
    """Read rows once, and keep them in Spark's memory while the block runs."""
    spark, is_kept = rows.sparkSession, rows.storageLevel.useMemory
    plan = rows._jdf.queryExecution().optimizedPlan()
    if plan.nodeName() == "LocalRelation":
        yield KeptRows(rows, int(plan.stats().sizeInBytes()))
        return
    if not is_kept:
        # With this setting on, Spark clones its session for each cached DataFrame, and starts a process to delete the
        # clone's files.
        with set_for_now(spark, {_BUCKETED: "false"}):
            rows = rows.persist()
    try:
        rows.count()
        plan = rows.select("*")._jdf.queryExecution().optimizedPlan()
        yield KeptRows(rows, int(plan.stats().sizeInBytes()))
    finally:
        if not is_kept:
            rows.unpersist()


@contextmanager
def fitted(spark: SparkSession) -> Iterator[None]:
    """Let Spark choose the number of tasks by the size of the data while the block runs, also inside a stream."""
    settings = {_ADAPTIVE: "true"}
    if spark.conf.get(_SNAPSHOT_PARTITIONS, None) is None and not is_connect(spark):
        partitions = min(spark.sparkContext.defaultParallelism, _SNAPSHOT_PARTITIONS_MAX)
        settings[_SNAPSHOT_PARTITIONS] = str(partitions)
    with set_for_now(spark, settings):
        yield
