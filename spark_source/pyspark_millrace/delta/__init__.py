"""Topics into Delta tables and back, exactly once.

*Direct ingest* (``ingest``): Spark plans, schedules and keeps the progress; the task that reads a split writes its
Parquet file from Arrow; and the driver commits the files to the table's log under the batch's transaction id. No row
crosses into the JVM. The table is an ordinary one: Spark, delta-rs and every other reader of Delta read it.

*By Spark* (``append``, ``upsert``, ``in_turn``): functions for ``foreachBatch`` that write under the same transaction.
*Back* (``changes_to_topic``): a table's changes to a topic.

* ``direct_ingest``     ``ingest()``, the streaming query; not named ``ingest``, which is the function's name here
* ``data_files``        the task: record batches to Parquet files and a row about each
* ``partition_values``  rows by the values of partition columns, and these as the log writes them
* ``statistics``        what the log says about the values in a file
* ``table``             the driver: the table, what it takes, and the commit of a batch
* ``remote``            what of this is done elsewhere in Spark Connect
* ``batches``           ``append()``, ``upsert()``, ``in_turn()``
* ``changes``           a change stream's latest per key
* ``merging``           changes by key into a table, with work that fits the batch
* ``direct_merge``      the driver's part of a merge without Spark's MERGE
* ``rewriting``         the task's part: files written anew with the changes
* ``schemas``           whether rows that Spark writes fit a table
* ``transactions``      writes by Spark that a table takes once
* ``compaction``        when and how small files are put together
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
    # PEP 562: tasks write files and do without what the driver needs to commit them.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"pyspark_millrace.delta.{_MODULES[name]}"), name)
