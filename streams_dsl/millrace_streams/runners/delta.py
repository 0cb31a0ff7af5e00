"""Writing Delta tables: upserts and appends that a replayed micro-batch does not repeat, and overwrites in one step.

A micro-batch is written under (``txnAppId``, ``txnVersion``) = (query and sink, batch id): Delta keeps the newest
version of each application in its log, in the same commit as the rows, and skips what it has already seen. So a batch
that Spark runs again after a crash between the write and its own commit changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.errors import EnvironmentProblemError
from millrace_streams.errors import TopologyError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What makes a write happen once: the application (query and sink), and the batch's number."""

    application: str
    version: int


def ensure_table(spark: SparkSession, path: str, schema: StructType) -> None:
    """Create the Delta table at ``path`` if it is not there.

    Raises ``TopologyError`` when a table with other columns is, ``EnvironmentProblemError`` when Delta is missing.
    """
    from delta.tables import DeltaTable

    if "io.delta.sql.DeltaSparkSessionExtension" not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise EnvironmentProblemError(
            "this Spark session has no Delta: make it with pyspark_millrace.session(), or give spark-submit Delta's "
            "package and its two settings"
        )
    DeltaTable.createIfNotExists(spark).location(path).addColumns(schema).execute()
    found = {field.name: field.dataType for field in DeltaTable.forPath(spark, path).toDF().schema}
    wanted = {field.name: field.dataType for field in schema}
    if found != wanted:
        raise TopologyError(
            f"the Delta table {path} has the columns {_columns(found)}, the topology gives {_columns(wanted)}: "
            "write to another table, or remove that one"
        )


def upsert(rows: DataFrame, path: str, key: Sequence[str], transaction: Transaction) -> None:
    """Update the rows whose key is there, insert the others. Null keys are equal to null keys.

    ``rows`` must not hold a key twice.
    """
    from delta.tables import DeltaTable

    spark = rows.sparkSession
    if DeltaTable.forPath(spark, path).detail().head()["numFiles"] == 0:
        # There is nothing to update, and a plain append takes a third of the time.
        append(rows, path, transaction)
        return
    same = " AND ".join(f"kept.`{name}` <=> new.`{name}`" for name in key)
    with _idempotent(spark, transaction):
        target = DeltaTable.forPath(spark, path).alias("kept")
        target.merge(rows.alias("new"), same).whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def append(rows: DataFrame, path: str, transaction: Transaction) -> None:
    """Add rows."""
    writer = rows.write.format("delta").mode("append")
    writer.option("txnAppId", transaction.application).option("txnVersion", transaction.version).save(path)


def overwrite(rows: DataFrame, path: str) -> None:
    """Replace a table's rows (and its columns, if they are others) in one commit."""
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)


@contextmanager
def _idempotent(spark: SparkSession, transaction: Transaction) -> Iterator[None]:
    """Delta takes the transaction of a MERGE from the session's settings."""
    spark.conf.set(_APP_ID, transaction.application)
    spark.conf.set(_VERSION, str(transaction.version))
    try:
        yield
    finally:
        spark.conf.unset(_APP_ID)
        spark.conf.unset(_VERSION)


def _columns(types: dict[str, object]) -> str:
    return ", ".join(f"{name} {data_type}" for name, data_type in types.items())
