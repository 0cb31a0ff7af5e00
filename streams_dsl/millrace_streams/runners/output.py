"""What the runners share behind a task: a table's newest rows, packed outputs to rows, types to Spark's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import polars as pl
import pyarrow as pa

from millrace_streams.compiler import Plan
from millrace_streams.graph import DeltaSinkNode
from millrace_streams.layout import Layout
from millrace_streams.runners.dead_letters import DEAD_LETTERS
from millrace_streams.runners.packing import OUT, Unpacker
from millrace_streams.steps.batch import TIMESTAMP, TOMBSTONE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_RESERVED: Final = {TIMESTAMP: pa.timestamp("us", tz="UTC"), TOMBSTONE: pa.bool_()}


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


def spark_schema(layout: Layout, reserved: Sequence[str] = ()) -> StructType:
    """A layout's columns, and reserved ones, as Spark has them; all nullable, as Delta tables' are by default."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    schema = pa.schema([*layout.schema, *(pa.field(name, _RESERVED[name]) for name in reserved)])
    fields = from_arrow_schema(schema).fields
    return StructType([StructField(field.name, field.dataType, nullable=True) for field in fields])


def arrow_schema(schema: StructType) -> pa.Schema:
    """A schema of Spark's as the batches must have that are given to it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return cast("pa.Schema", to_arrow_schema(schema, timezone="UTC"))


def packed_of(results: DataFrame, sink: str) -> DataFrame:
    """What left the topology at a sink, packed."""
    return results.where((results["stage"] == OUT) & (results["target"] == sink)).select("payload")


def unpacked(results: DataFrame, sink: str, layout: Layout, reserved: Sequence[str] = ()) -> DataFrame:
    """The rows of one sink among packed outputs, with those of the reserved columns that its rows have."""
    schema = spark_schema(layout, reserved)
    return packed_of(results, sink).mapInArrow(Unpacker(arrow_schema(schema)), schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Records that went in, rows that came out by the node of their sink (dead letters too), records dropped."""

    records: int
    rows: Mapping[str, int]
    dropped: int


def count_outputs(results: DataFrame, plan: Plan) -> Counts:
    """Add up packed outputs. Reads all partitions, which a stateful query must be sure of in every micro-batch."""
    counted = results.groupBy("target").agg({"rows": "sum", "records": "sum", "dropped": "sum"}).collect()
    rows = {row["target"]: row["sum(rows)"] for row in counted}
    return Counts(
        records=sum(row["sum(records)"] for row in counted),
        rows={name: rows.get(name, 0) for name in (*(node.name for node in plan.outputs), DEAD_LETTERS)},
        dropped=sum(row["sum(dropped)"] for row in counted),
    )


def rows_by_name(counts: Counts, plan: Plan) -> dict[str, int]:
    """Rows by Delta table and topic; a topic that has a table's name is told from it."""
    found: dict[str, int] = {}
    for node in plan.outputs:
        name = address(node)
        if name in plan.topology.tables and not isinstance(node, DeltaSinkNode):
            name = f"topic {name}"
        found[name] = found.get(name, 0) + counts.rows[node.name]
    return found


def address(node: object) -> str:
    """The table or topic that a node writes."""
    name: str = getattr(node, "table", None) or node.topic  # type: ignore[attr-defined]
    return name


def limit_worker_threads(spark: SparkSession) -> None:
    """Keep polars to one thread in workers, where Spark runs one task per core, unless somebody chose otherwise."""
    spark.sparkContext.environment.setdefault("POLARS_MAX_THREADS", "1")
