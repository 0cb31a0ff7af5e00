"""Direct ingest through Spark Connect.

The client of Spark Connect runs on neither driver nor executor, and need not reach the table or the brokers. Therefore
other processes do the driver's part of ``ingest()``. A task creates and checks the table. The Python process in which
Connect runs ``foreachBatch``, beside the driver, commits the batches. That process does not get the query's id. It
reads the id from the file ``metadata`` of the query's checkpoint, which Spark writes before the first batch.
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
    """Open or create the table in a task. Raises the errors of ``TableRequest.open``."""
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
    """Return the id of the query with this checkpoint.

    Spark reads the checkpoint, because the cluster can reach its file system.
    """
    row = spark.read.text(f"{checkpoint.rstrip('/')}/metadata").head()
    assert row is not None, "Spark writes a query's metadata before its first batch"
    return str(json.loads(row["value"])["id"])
