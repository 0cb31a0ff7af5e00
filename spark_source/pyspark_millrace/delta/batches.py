"""Functions for ``foreachBatch`` that write each micro-batch into Delta tables once.

    changes.writeStream.foreachBatch(upsert("/data/orders", key=["id"])).option("checkpointLocation", ...).start()

The transaction consists of the query's id and the batch's number, as in Spark's own Delta sink and in direct ingest.
Therefore a query may change from one of these writers to another between two runs of the same checkpoint.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from millrace.errors import UsageError
from pyspark_millrace.delta.changes import ChangeRules
from pyspark_millrace.delta.compaction import Compaction, Compactor
from pyspark_millrace.delta.table import local_directory
from pyspark_millrace.delta.transactions import Transaction, append_rows, check_delta, query_id_of
from pyspark_millrace.interruption import interrupted_in_few_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Select = Callable[["DataFrame"], "DataFrame"]
"""A function that chooses the rows and columns of a micro-batch for a table."""


class BatchWriter:
    """A writer of micro-batches into one table; ``append`` and ``upsert`` create it."""

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
        """Write a batch. A batch that the table already holds is skipped.

        Raises ``UsageError`` outside of a query's driver, where the query's id is unknown, if no ``application`` was
        given.
        """
        spark = rows.sparkSession
        application = self.application or query_id_of(spark)
        if application is None:
            raise UsageError("the id of the query is unknown here, as in Spark Connect: give application=<a name>")
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
    """Return a function for ``foreachBatch`` that adds each batch's rows to a Delta table, once.

    ``table`` is a path or URI. A table that does not exist is created, partitioned by ``partition_by``. ``select``
    chooses rows and columns. ``merge_schema`` allows new columns in the table. ``application`` names the writer in the
    table's log instead of the query's id. Use such a name with one checkpoint only, because the log pairs it with that
    checkpoint's batch numbers.
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
    """Return a function for ``foreachBatch`` that applies each batch's changes to a Delta table by ``key``, once.

    ``pyspark_millrace.delta.changes.ChangeRules`` describes ``key``, ``delete_when``, ``order_by``, ``guard``, ``drop``
    and ``merge_schema``. ``append`` describes the other arguments. Raises ``UsageError`` without a key.
    """
    if not key:
        raise UsageError("key: name the columns that identify a row of the table")
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
    """A function for ``foreachBatch`` with several writers; ``in_turn`` creates it."""

    writers: tuple[BatchWriter, ...]

    @interrupted_in_few_words()
    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch by each writer. Writers whose table already holds the batch skip it."""
        kept: Any = rows.persist()
        try:
            for writer in self.writers:
                writer(kept, batch_id)
        finally:
            kept.unpersist()


def in_turn(*writers: BatchWriter) -> InTurn:
    """Return a function for ``foreachBatch`` that writes each batch into several tables.

    The records are read once. The tables are written one after another, each exactly once. A reader may see a batch in
    the first table before the last table has it. Raises ``UsageError`` for two writers of one table under one
    application, because the second write of a batch would be skipped as a replay.
    """
    seen: set[tuple[str, str | None]] = set()
    for writer in writers:
        identity = (_place(writer.table), writer.application)
        if identity in seen:
            raise UsageError(f"two writers of {writer.table}: give each an application=<name> of its own")
        seen.add(identity)
    return InTurn(tuple(writers))


def _place(table: str) -> str:
    """Return one spelling for all spellings of a table's path or URI."""
    parts = urlsplit(table)
    if not parts.scheme or (parts.scheme == "file" and parts.netloc in ("", "localhost")):
        return os.path.realpath(local_directory(table))
    return parts._replace(path=posixpath.normpath(parts.path)).geturl()
