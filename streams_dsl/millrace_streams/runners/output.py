"""What the runners share behind a task: a table's newest rows, packed outputs to rows, types to Spark's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import polars as pl
import pyarrow as pa

from millrace_streams.compiler import Plan
from millrace_streams.layout import Layout
from millrace_streams.runners.packing import Unpacker
from millrace_streams.steps.batch import TOMBSTONE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def newest_rows(frame: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    """The last row of each key and window of a table; all rows of a stream."""
    if not layout.table:
        return frame
    return frame.unique(layout.row_key, keep="last", maintain_order=True)


def gone(columns: Sequence[str], layout: Layout) -> pl.Expr:
    """Which of a table's rows say that the row is deleted."""
    if layout.value is not None:
        return pl.col(layout.value).is_null()
    return pl.col(TOMBSTONE).fill_null(False) if TOMBSTONE in columns else pl.lit(False)


def spark_schema(layout: Layout, *, deletes: bool = False) -> StructType:
    """A layout's columns as Spark has them; all nullable, as Delta tables' are by default.

    With ``deletes`` a last column says which rows delete those of their keys.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    schema = layout.schema.append(pa.field(TOMBSTONE, pa.bool_())) if deletes else layout.schema
    fields = from_arrow_schema(schema).fields
    return StructType([StructField(field.name, field.dataType, nullable=True) for field in fields])


def unpacked(results: DataFrame, sink: str, layout: Layout, *, deletes: bool = False) -> DataFrame:
    """The rows of one sink among packed outputs; with ``deletes`` also those that delete, marked."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = spark_schema(layout, deletes=deletes)
    arrow = cast("pa.Schema", to_arrow_schema(schema, timezone="UTC"))
    of_sink = results.where(results["sink"] == sink).select("payload")
    return of_sink.mapInArrow(Unpacker(arrow), schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Records that went in, rows that came out by Delta table, records dropped."""

    records: int
    rows: Mapping[str, int]
    dropped: int


def count_outputs(results: DataFrame, plan: Plan) -> Counts:
    """Add up packed outputs. Reads all partitions, which a stateful query must be sure of in every micro-batch."""
    counted = results.groupBy("sink").agg({"rows": "sum", "records": "sum", "dropped": "sum"}).collect()
    rows = {row["sink"]: row["sum(rows)"] for row in counted}
    return Counts(
        records=sum(row["sum(records)"] for row in counted),
        rows={sink.table: rows.get(sink.name, 0) for sink in plan.delta_sinks},
        dropped=sum(row["sum(dropped)"] for row in counted),
    )


def limit_worker_threads(spark: SparkSession) -> None:
    """Keep polars to one thread in workers, where Spark runs one task per core, unless somebody chose otherwise."""
    spark.sparkContext.environment.setdefault("POLARS_MAX_THREADS", "1")
