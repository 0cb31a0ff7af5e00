"""Idempotent writes by Spark: appends and MERGEs under their micro-batch's transaction.

A write goes into the table's log together with ``txnAppId`` and ``txnVersion``, an application and a number that only
grows. Delta skips a write whose number is in the log already (Delta protocol, "Transaction Identifiers"). Spark runs a
batch again after a crash between the table's commit and Spark's own. That second write changes nothing. Each table has
its own log. If a batch goes to several tables, those that hold it skip it, and the others take it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import deltalake as delta_rs
from deltalake.exceptions import DeltaError

from millrace.errors import EnvironmentProblemError
from pyspark_millrace.delta.schemas import mismatch_explained
from pyspark_millrace.delta.table import is_local, local_directory, nullable
from pyspark_millrace.session_settings import set_for_now
from pyspark_millrace.spark_connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_QUERY_ID: Final = "sql.streaming.queryId"
"""The local property in which Spark sets the query's id for the query's thread. The id comes from the checkpoint."""
_ATTEMPTS_MAX: Final = 10
_DEFAULT_PROPERTIES: Final = "spark.databricks.delta.properties.defaults."
_NEEDS_MAPPING: Final = re.compile(r"[ ,;{}()\n\t=]")
"""Characters in names of columns that Parquet files do not have. Delta takes them with column mapping only."""
MERGED: Final = "changes by key"
"""Value of ``userMetadata`` in the commits of ``append_first``, whose operation is that of any append."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Identity of a write that must happen once.

    ``application`` identifies the writer, and ``version`` is the number of the batch.
    """

    application: str
    version: int


def query_id_of(spark: SparkSession) -> str | None:
    """Return the id of the query whose ``foreachBatch`` is running; ``None`` elsewhere, and in Spark Connect."""
    if is_connect(spark):
        return None
    value = spark.sparkContext.getLocalProperty(_QUERY_ID)
    return str(value) if value else None


def check_delta(spark: SparkSession) -> None:
    """Raise ``EnvironmentProblemError`` when the session has no Delta."""
    if "io.delta.sql.DeltaSparkSessionExtension" not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise EnvironmentProblemError(
            "this Spark session has no Delta: make it with pyspark_millrace.session(), or give spark-submit Delta's "
            "package and its two settings"
        )


def create_if_missing(spark: SparkSession, path: str, schema: StructType, partition_by: Sequence[str] = ()) -> None:
    """Create an empty table of these columns, all nullable, if there is no table."""
    from delta.tables import DeltaTable
    from pyspark.sql.types import StructField, StructType

    check_delta(spark)
    if _is_seen_here(spark, path):
        # Delta's first commit in a JVM takes several seconds.
        if delta_rs.DeltaTable.is_deltatable(str(local_directory(path))):
            return
        if _create_here(spark, path, schema, partition_by):
            return
    if DeltaTable.isDeltaTable(spark, path):
        return
    # Not DeltaTable.createIfNotExists, which refuses a directory with any file in it, such as the query's checkpoint.
    empty = spark.createDataFrame([], StructType([StructField(field.name, field.dataType) for field in schema]))
    empty.write.format("delta").mode("ignore").partitionBy(*partition_by).save(path)


def _is_seen_here(spark: SparkSession, path: str) -> bool:
    return not is_connect(spark) and is_local(spark, path)


def _create_here(spark: SparkSession, path: str, schema: StructType, partition_by: Sequence[str]) -> bool:
    """Create a table without Spark; returns False if only Spark can create it.

    Spark applies the session's default properties of tables, and knows further types and names of columns.
    """
    if any(name.startswith(_DEFAULT_PROPERTIES) for name in spark.conf.getAll):
        return False
    types = json.loads(schema.json())
    if any(map(_NEEDS_MAPPING.search, _field_names(types))):
        return False
    directory = str(local_directory(path))
    try:
        columns = delta_rs.Schema.from_json(json.dumps(nullable(types)))
        delta_rs.DeltaTable.create(directory, columns, mode="ignore", partition_by=list(partition_by) or None)
    except (DeltaError, OSError, ValueError) as error:
        _log.info("Spark creates the table %s, because %s", path, error)
        return False
    return True


def _field_names(of_type: Any) -> Iterator[str]:
    """Yield the names of the fields of a type in JSON, at any depth."""
    if isinstance(of_type, Mapping):
        for field in of_type.get("fields", ()):
            yield field["name"]
            yield from _field_names(field["type"])
        for inner in ("elementType", "keyType", "valueType"):
            yield from _field_names(of_type.get(inner))


def columns_of(spark: SparkSession, path: str) -> StructType:
    """Return the columns of the Delta table at ``path``."""
    from delta.tables import DeltaTable
    from pyspark.sql.types import StructType

    if _is_seen_here(spark, path):
        try:
            schema = delta_rs.DeltaTable(str(local_directory(path))).schema()
        except DeltaError as error:
            _log.info("Spark opens the table %s, because %s", path, error)
        else:
            return StructType.fromJson(json.loads(schema.to_json()))
    return DeltaTable.forPath(spark, path).toDF().schema


def is_empty(spark: SparkSession, path: str) -> bool:
    """Return whether the table at ``path`` has no files."""
    from delta.tables import DeltaTable

    return bool(DeltaTable.forPath(spark, path).detail().head()["numFiles"] == 0)


def append_rows(
    rows: DataFrame,
    path: str,
    transaction: Transaction,
    *,
    partition_by: Sequence[str] = (),
    merge_schema: bool = False,
) -> None:
    """Add rows, once for the transaction. A table that does not exist is created.

    Raises ``SchemaMismatchError`` when the table does not take the rows.
    """
    _append(rows, rows.write.partitionBy(*partition_by), path, transaction, merge_schema)


def append_first(rows: DataFrame, path: str, transaction: Transaction, *, merge_schema: bool = False) -> None:
    """Append the first rows to an empty table, as ``append_rows``. A MERGE would take three times as long."""
    _append(rows, rows.write.option("userMetadata", MERGED), path, transaction, merge_schema)


def _append(rows: DataFrame, writer: DataFrameWriter, path: str, transaction: Transaction, merge_schema: bool) -> None:
    writer = writer.format("delta").mode("append")
    writer = writer.option("txnAppId", transaction.application).option("txnVersion", transaction.version)
    with mismatch_explained(rows.sparkSession, path, rows.schema, merge_schema=merge_schema):
        (writer.option("mergeSchema", "true") if merge_schema else writer).save(path)


def merge_rows(
    rows: DataFrame, path: str, condition: str, transaction: Transaction, plan: Callable[[Any], Any]
) -> None:
    """MERGE ``rows`` (with the alias ``new``) into the table (alias ``kept``), once for the transaction.

    ``plan`` adds the clauses to a ``DeltaMergeBuilder``. If the commit conflicts with another writer's, the merge is
    tried again on the table's new version. After ten attempts, Delta's exception is raised.
    """
    from delta.tables import DeltaTable

    spark = rows.sparkSession
    conflicts = conflict_errors()
    # Delta takes the transaction of a MERGE from the session's settings.
    with set_for_now(spark, {_APP_ID: transaction.application, _VERSION: str(transaction.version)}):
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            target = DeltaTable.forPath(spark, path).alias("kept")
            try:
                plan(target.merge(rows.alias("new"), condition)).execute()
            except conflicts as error:
                if attempt == _ATTEMPTS_MAX:
                    raise
                _log.info("merge into %s, attempt %d: %s", path, attempt, error)
            else:
                return


def same_key(key: Sequence[str]) -> str:
    """Return the condition of a MERGE by key. Null keys are equal to null keys."""
    return " AND ".join(f"kept.{quoted(name)} <=> new.{quoted(name)}" for name in key)


def quoted(name: str) -> str:
    """Quote a column's name for SQL, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def conflict_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that Delta raises for conflicts with another writer."""
    from delta import exceptions

    return (
        exceptions.ConcurrentWriteException,
        exceptions.ConcurrentAppendException,
        exceptions.ConcurrentDeleteReadException,
        exceptions.ConcurrentDeleteDeleteException,
        exceptions.ConcurrentTransactionException,
        exceptions.MetadataChangedException,
    )
