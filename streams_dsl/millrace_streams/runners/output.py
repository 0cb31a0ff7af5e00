"""What the Spark runners share behind a task: packed outputs to rows, types to Spark's, workers to one thread each."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pyarrow as pa

from millrace_streams.layout import Layout
from millrace_streams.runners.packing import Unpacker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def spark_schema(layout: Layout) -> StructType:
    """A layout's columns as Spark has them; all nullable, as Delta tables' are by default."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    fields = from_arrow_schema(layout.schema).fields
    return StructType([StructField(field.name, field.dataType, nullable=True) for field in fields])


def unpacked(results: DataFrame, sink: str, layout: Layout) -> DataFrame:
    """The rows of one sink among packed outputs."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = spark_schema(layout)
    arrow = cast("pa.Schema", to_arrow_schema(schema, timezone="UTC"))
    of_sink = results.where(results["sink"] == sink).select("payload")
    return of_sink.mapInArrow(Unpacker(arrow), schema)


def limit_worker_threads(spark: SparkSession) -> None:
    """Keep polars to one thread in workers, where Spark runs one task per core, unless somebody chose otherwise."""
    spark.sparkContext.environment.setdefault("POLARS_MAX_THREADS", "1")
