"""What ``foreachBatch`` takes: functions that write each micro-batch into a Delta table, or several, once.

    changes.writeStream.foreachBatch(upsert("/data/orders", key=["id"])).option("checkpointLocation", ...).start()

The transaction is the query's id and the batch's number, as of Spark's own Delta sink and of direct ingest: a
checkpoint can go from one of these writers to another between two runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.errors import UsageError
from pyspark_millrace.delta.changes import ChangeRules
from pyspark_millrace.delta.compaction import Compaction, Compactor
from pyspark_millrace.delta.transactions import Transaction, append_rows, check_delta, query_id_of
from pyspark_millrace.interruption import interrupted_in_few_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Select = Callable[["DataFrame"], "DataFrame"]
"""What of a micro-batch goes into a table."""


class BatchWriter:
    """Writes micro-batches into one table; made by ``append`` and ``upsert``."""

    def __init__(
        self,
        table: str,
        write: Callable[[DataFrame, Transaction], int | None],
        *,
        application: str | None,
        select: Select | None,
        compaction: Compaction | None,
    ) -> None:
        self.table = table.rstrip("/")
        self.application = application
        self._write = write
        self._select = select
        self._compactor = None if compaction is None else Compactor(compaction, table)

    @interrupted_in_few_words()
    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch; written before, it is passed over.

        Raises ``UsageError`` outside of a query's driver, where its id is unknown and no ``application`` was given.
        """
        spark = rows.sparkSession
        application = self.application or query_id_of(spark)
        if application is None:
            raise UsageError("the id of the query is unknown here, as in Spark Connect: say application=<a name>")
        check_delta(spark)
        chosen = self._select(rows) if self._select is not None else rows
        added_bytes = self._write(chosen, Transaction(application=application, version=batch_id))
        if self._compactor is not None:
            self._compactor.after(spark, batch_id, added_bytes)


def append(
    table: str,
    *,
    select: Select | None = None,
    partition_by: Sequence[str] = (),
    merge_schema: bool = False,
    compaction: Compaction | None = None,
    application: str | None = None,
) -> BatchWriter:
    """For ``foreachBatch``: add each batch's rows to the Delta table at ``table`` (path or URI), once.

    The table is made if there is none, partitioned by ``partition_by``. ``select`` says which rows and columns,
    ``merge_schema`` lets columns be added. ``application`` names the writer in the table's log instead of the query's
    id: it must belong to one checkpoint for ever, whose batch numbers it goes with.
    """

    def write(rows: DataFrame, transaction: Transaction) -> None:
        append_rows(rows, table, transaction, partition_by=partition_by, merge_schema=merge_schema)

    return BatchWriter(table, write, application=application, select=select, compaction=compaction)


def upsert(
    table: str,
    *,
    key: Sequence[str],
    delete_when: str | None = None,
    order_by: Sequence[str] = (),
    guard: str | None = None,
    drop: Sequence[str] = (),
    select: Select | None = None,
    partition_by: Sequence[str] = (),
    merge_schema: bool = False,
    compaction: Compaction | None = None,
    application: str | None = None,
) -> BatchWriter:
    """For ``foreachBatch``: apply each batch's changes to the Delta table at ``table``, once, by ``key``.

    See ``changes.ChangeRules`` for the rules, ``append`` for the rest. Raises ``UsageError`` without a key.
    """
    if not key:
        raise UsageError("key: name the columns by which rows of the table are known")
    rules = ChangeRules(
        key=tuple(key),
        delete_when=delete_when,
        order_by=tuple(order_by),
        guard=guard,
        drop=tuple(drop),
        merge_schema=merge_schema,
    )

    merged = rules.table(table, partition_by)

    def write(rows: DataFrame, transaction: Transaction) -> int | None:
        return merged.merge(rows, rules.latest, transaction)

    return BatchWriter(table, write, application=application, select=select, compaction=compaction)


@dataclass(frozen=True, slots=True)
class InTurn:
    """Writes each batch by several writers; made by ``in_turn``."""

    writers: tuple[BatchWriter, ...]

    @interrupted_in_few_words()
    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch; writers that had it before a crash pass over it."""
        kept: Any = rows.persist()
        try:
            for writer in self.writers:
                writer(kept, batch_id)
        finally:
            kept.unpersist()


def in_turn(*writers: BatchWriter) -> InTurn:
    """For ``foreachBatch``: write each batch into several tables. The records are read once.

    Tables are written one after another, each exactly once; a reader may see a batch in the first and not yet in the
    last. Raises ``UsageError`` for two writers of one table: the second of a batch would be taken for a replay.
    """
    seen: set[tuple[str, str | None]] = set()
    for writer in writers:
        identity = (writer.table, writer.application)
        if identity in seen:
            raise UsageError(f"two writers of {writer.table}: give each an application=<name> of its own")
        seen.add(identity)
    return InTurn(tuple(writers))
