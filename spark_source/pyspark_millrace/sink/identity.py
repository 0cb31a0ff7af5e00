"""Identity of a write, under which its transaction is committed once.

Spark passes the number of a micro-batch to a sink, but nothing about the query. A task sees more in the local
properties of the query's jobs, and passes it to the driver in its commit message.

* A stream's writes are named by the query's id from the checkpoint. A new checkpoint is a new query, so its batches
  cannot be confused with those of another.
* ``txnAppId`` replaces that name. It belongs to the first query that used it. A second query is refused, because its
  batch 0 would be skipped as already written.
* A batch write has its own identity. With ``txnAppId`` and ``txnVersion`` it is written once under that name and
  number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millrace.errors import UsageError
from pyspark_millrace.sink.options import SinkOptions

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark sets for all jobs of a streaming query."""

_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteIdentity:
    """One execution (``attempt``) of one write, with number ``epoch`` under ``external_id``.

    ``owner`` describes the only allowed writer under that id. ``retention_ms`` is the time after which an unused id is
    forgotten; 0 means never.
    """

    external_id: str
    epoch: int
    owner: str
    attempt: str
    retention_ms: int = 0

    def __str__(self) -> str:
        return f"write {self.epoch} of {self.external_id}"


def identity_of_batch(options: SinkOptions, attempt: str, local_property: Callable[[str], str | None]) -> WriteIdentity:
    """Return the identity of a batch write. Within ``foreachBatch`` only the options define it, too."""
    name, version = options.transaction_app_id, options.transaction_version
    if name is None or version is None:
        # This id is not needed after the driver has its answer.
        return WriteIdentity(
            external_id=f"spark-write-{attempt}", epoch=0, owner="", attempt=attempt, retention_ms=_DAY_MS
        )
    query_id = local_property(QUERY_ID)
    who = f"query {query_id}" if query_id else "batch writes"
    # Without the topic, the second of two writes of one foreachBatch under one name would be skipped.
    owner = f"{who} to {options.topic or 'the topics of a column'}"
    return WriteIdentity(external_id=name, epoch=version, owner=owner, attempt=attempt)


def identity_of_stream(
    options: SinkOptions, attempt: str, local_property: Callable[[str], str | None]
) -> WriteIdentity:
    """Return the identity of a micro-batch. Raises ``UsageError`` if Spark does not identify it."""
    query_id, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
    if not query_id or not batch_id:
        raise UsageError(
            f"the task has no property {QUERY_ID if not query_id else BATCH_ID}, which an exactly-once write needs: "
            "set deliveryGuarantee=at-least-once"
        )
    external_id = options.transaction_app_id or f"spark-{query_id}"
    return WriteIdentity(external_id=external_id, epoch=int(batch_id), owner=f"query {query_id}", attempt=attempt)
