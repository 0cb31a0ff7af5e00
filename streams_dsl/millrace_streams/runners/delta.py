"""Writes to Delta tables: idempotent upserts, appends, and overwrites.

``pyspark_millrace.delta.merging`` writes a repeated micro-batch once, under a transaction. The application id
consists of the query's id and the name of the sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace_streams.errors import TopologyError
from pyspark_millrace.delta.merging import KeyedTable
from pyspark_millrace.delta.transactions import Transaction, columns_of, create_if_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def ensure_table(spark: SparkSession, path: str, schema: StructType) -> None:
    """Create the Delta table at ``path`` if it does not exist.

    Raises ``TopologyError`` if a table has other columns, ``EnvironmentProblemError`` if Delta is missing.
    """
    create_if_missing(spark, path, schema)
    found = {field.name: field.dataType for field in columns_of(spark, path)}
    wanted = {field.name: field.dataType for field in schema}
    if found != wanted:
        raise TopologyError(
            f"the Delta table {path} has the columns {_columns(found)}, but the topology gives {_columns(wanted)}: "
            "write to another table, or remove that one"
        )


def upsert(
    rows: DataFrame, path: str, key: Sequence[str], transaction: Transaction, *, mark: str | None = None
) -> None:
    """Update the rows whose key exists, and insert the others. Null keys equal null keys.

    A bucket has one row of a key. Several buckets have rows of a key if producers placed its records in several
    partitions. Then one of these rows is written. With ``mark``, a boolean column, rows where it is true delete the row
    of their key.
    """
    KeyedTable(path=path, key=tuple(key), deleted=mark).merge(rows, None, transaction)


def overwrite(rows: DataFrame, path: str) -> None:
    """Replace a table's rows (and columns, if they differ) in one commit."""
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)


def _columns(types: dict[str, object]) -> str:
    return ", ".join(f"{name} {data_type}" for name, data_type in types.items())
