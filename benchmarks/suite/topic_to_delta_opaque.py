"""Stream of an opaque topic into a Delta table with Trigger.AvailableNow.

The values are written as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.spark import Outcome, Source, benchmark, ingest_into_delta, kafka_stream, stream_into_delta

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

BENCHMARK = benchmark(
    name="topic_to_delta_opaque",
    title="Opaque topic into a Delta table: key, value, partition, offset, timestamp, AvailableNow",
    target_ratio=4,
    topic="opaque",
    ours="pyspark_millrace.delta.ingest(...): the tasks write the files",
    peer='readStream.format("kafka") .writeStream.format("delta").trigger(availableNow=True)',
)

COLUMNS = ("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value", "partition", "offset", "timestamp")
SCHEMA = "key STRING, value STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"


def ours(spark: SparkSession, source: Source) -> Outcome:
    from pyspark.sql.types import StructType

    options = {"columns": "key,value,partition,offset,timestamp"}
    schema = StructType.fromDDL(SCHEMA)
    return ingest_into_delta(spark, source, options, transform=_as_strings, transform_schema=schema)


def peer(spark: SparkSession, source: Source, **options: str) -> Outcome:
    return stream_into_delta(kafka_stream(spark, source, **options).load().selectExpr(*COLUMNS), source)


def _as_strings(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for number, name in enumerate(("key", "value")):
            batch = batch.set_column(number, name, batch.column(name).cast(pa.string()))
        yield batch
