"""Exactly-once streams from topics into Delta tables, and back.

*Direct ingest* (``ingest``): Spark plans the batches, schedules the tasks and keeps the progress. Each task reads a
split and writes its Parquet file from Arrow. The driver commits the files to the table's log under the batch's
transaction id. No row crosses into the JVM. The table is an ordinary Delta table, which Spark, delta-rs and other
readers of Delta can read.

*Writes by Spark* (``append``, ``upsert``, ``in_turn``): functions for ``foreachBatch``, which write under the same
transaction id.

*From a table to a topic* (``changes_to_topic``): the table's changes become records.

* ``direct_ingest``     ``ingest()``, the streaming query; the module cannot be named ``ingest`` like the function
* ``data_files``        in tasks: record batches to Parquet files, and a row that describes each file
* ``partition_values``  rows grouped by the values of partition columns, and these values in the log's form
* ``statistics``        the log's statistics of a data file
* ``table``             in the driver: the table, its checks, and the commit of a batch
* ``remote``            the parts of a direct ingest that run elsewhere in Spark Connect
* ``batches``           ``append()``, ``upsert()``, ``in_turn()``
* ``changes``           the latest change of each key in a batch
* ``merging``           a merge of changes by key, with as many tasks as the batch needs
* ``direct_merge``      the driver's part of a merge without Spark's MERGE
* ``rewriting``         the task's part of such a merge: files rewritten with the changes
* ``schemas``           check whether rows that Spark writes fit a table
* ``transactions``      idempotent writes by Spark
* ``compaction``        when and how small files are compacted
* ``to_topic``          ``changes_to_topic()``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_millrace.delta.batches import append, in_turn, upsert
    from pyspark_millrace.delta.compaction import Compaction
    from pyspark_millrace.delta.direct_ingest import IngestedBatch, ingest
    from pyspark_millrace.delta.to_topic import changes_to_topic

__all__ = ["Compaction", "IngestedBatch", "append", "changes_to_topic", "in_turn", "ingest", "upsert"]

_MODULES = {
    "Compaction": "compaction",
    "IngestedBatch": "direct_ingest",
    "append": "batches",
    "changes_to_topic": "to_topic",
    "in_turn": "batches",
    "ingest": "direct_ingest",
    "upsert": "batches",
}


def __getattr__(name: str) -> Any:
    # PEP 562: tasks write files, and need none of the imports with which the driver commits them.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"pyspark_millrace.delta.{_MODULES[name]}"), name)
