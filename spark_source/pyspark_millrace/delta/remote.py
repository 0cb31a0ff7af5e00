"""A direct ingest that is asked for through Spark Connect.

The program that asks is on neither driver nor executor: it need not see the table, nor the brokers. So what
``ingest()`` does in the driver is done elsewhere: the table is made and checked by a task, and batches are committed by
the Python process beside the driver in which Connect runs ``foreachBatch``. That is not told the query's id either;
what is sure to be the query's own is its checkpoint, whose file ``metadata`` says it (written before the first batch).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from pyspark_millrace.delta.table import TableFacts, TableRequest
from pyspark_millrace.spark_errors import millrace_error_in

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_DDL: Final = "facts BINARY"


def facts_by_task(spark: SparkSession, request: TableRequest) -> TableFacts:
    """Have a task open the table, or make it. Raises what ``TableRequest.open`` does."""
    asked = spark.range(1, numPartitions=1).mapInArrow(partial(_open_in_task, request), _DDL)
    try:
        row = asked.head()
    except PySparkException as error:
        if (ours := millrace_error_in(error)) is not None:
            raise ours from None
        raise
    assert row is not None, "a task gives one row"
    facts: TableFacts = pickle.loads(row["facts"])
    return facts


def _open_in_task(request: TableRequest, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"facts": pa.array([pickle.dumps(request.open().facts)], pa.binary())})


def query_id_in_checkpoint(spark: SparkSession, checkpoint: str) -> str:
    """The id of the query whose checkpoint this is, read by Spark, which reaches it wherever it is."""
    row = spark.read.text(f"{checkpoint.rstrip('/')}/metadata").head()
    assert row is not None, "Spark writes a query's metadata before its first batch"
    return str(json.loads(row["value"])["id"])
