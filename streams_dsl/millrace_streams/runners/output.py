"""Shared output code of the runners: rows, Spark types, threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

import polars as pl
import pyarrow as pa

from millrace_streams.layout import Layout
from millrace_streams.steps.batch import HEADERS, TIMESTAMP, TOMBSTONE, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_RESERVED: Final = {
    TIMESTAMP: pa.timestamp("us", tz="UTC"),
    TOMBSTONE: pa.bool_(),
    HEADERS: HEADERS_TYPE,
    TOPIC: pa.string(),
}


def newest_rows(frame: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    """Return the last row of each key and window of a table; all rows of a stream."""
    if not layout.table:
        return frame
    return frame.unique(layout.row_key, keep="last", maintain_order=True)


def gone(columns: Sequence[str], layout: Layout) -> pl.Expr:
    """Return a mask of a table's rows that are deletions."""
    if layout.value is not None:
        return pl.col(layout.value).is_null()
    return pl.col(TOMBSTONE).fill_null(False) if TOMBSTONE in columns else pl.lit(False)


def spark_schema(layout: Layout, reserved: Sequence[str] = ()) -> StructType:
    """Return a layout's columns and reserved ones as a Spark schema; all nullable, as in Delta tables by default."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    schema = pa.schema([*layout.schema, *(pa.field(name, _RESERVED[name]) for name in reserved)])
    fields = from_arrow_schema(schema).fields
    return StructType([StructField(field.name, field.dataType, nullable=True) for field in fields])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of batches for a Spark schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return cast("pa.Schema", to_arrow_schema(schema, timezone="UTC"))


def address(node: object) -> str:
    """Return the table or topic that a node writes; the node's name if a function names the topics."""
    name: str = getattr(node, "table", None) or node.topic or node.name  # type: ignore[attr-defined]
    return name


def limit_worker_threads(spark: SparkSession) -> None:
    """Limit polars to one thread in workers, because Spark runs one task per core; an explicit setting is kept."""
    spark.sparkContext.environment.setdefault("POLARS_MAX_THREADS", "1")
