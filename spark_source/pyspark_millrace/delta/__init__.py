"""Topics into Delta tables without a row crossing into the JVM: *direct ingest*.

Spark plans, schedules and keeps the progress; the task that reads a split writes its Parquet file from Arrow; and the
driver commits the files to the table's log under the batch's transaction id. The table is an ordinary one: Spark,
delta-rs and every other reader of Delta read it.

* ``query``             ``ingest()``, the streaming query
* ``data_files``        the task: record batches to Parquet files and a row about each
* ``partition_values``  rows by the values of partition columns, and these as the log writes them
* ``statistics``        what the log says about the values in a file
* ``table``             the driver: the table, what it takes, and the commit of a batch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_millrace.delta.query import IngestedBatch, ingest

__all__ = ["IngestedBatch", "ingest"]


def __getattr__(name: str) -> Any:
    # PEP 562: tasks write files and do without what the driver needs to commit them.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("pyspark_millrace.delta.query"), name)
