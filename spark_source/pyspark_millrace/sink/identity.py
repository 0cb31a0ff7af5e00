"""As which write of which query a task's records count: what its transaction is committed under.

Spark tells a sink the number of a micro-batch and nothing of the query. A task sees more, in the properties that Spark
gives every job of a query; its message to the driver carries that on.

* A stream's writes are named by the query's id, which is in the checkpoint: a new checkpoint is a new query, whose
  batches cannot be taken for those of another.
* ``txnAppId`` names them otherwise, and belongs to the first query that used it: a second one is refused, since its
  batch 0 would be passed over as one that was written long ago.
* A batch write is one of its own, unless ``txnAppId`` and ``txnVersion`` say which: then it is written once.
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
    """One execution (``attempt``) of one write: number ``epoch`` of those that are known under ``external_id``.

    ``owner`` is who alone writes under it, in words; ``retention_ms`` how long it is remembered unused, 0 for ever.
    """

    external_id: str
    epoch: int
    owner: str
    attempt: str
    retention_ms: int = 0

    def __str__(self) -> str:
        return f"write {self.epoch} of {self.external_id}"


def identity_of_batch(options: SinkOptions, attempt: str, local_property: Callable[[str], str | None]) -> WriteIdentity:
    """The identity of a batch write: within ``foreachBatch``, too, only what the options say."""
    name, version = options.transaction_app_id, options.transaction_version
    if name is None or version is None:
        # Asked for by nobody after the driver has its answer.
        return WriteIdentity(
            external_id=f"spark-write-{attempt}", epoch=0, owner="", attempt=attempt, retention_ms=_DAY_MS
        )
    query_id = local_property(QUERY_ID)
    who = f"query {query_id}" if query_id else "batch writes"
    # Two writes of one foreachBatch under the same name: the second would be passed over.
    owner = f"{who} to {options.topic or 'the topics of a column'}"
    return WriteIdentity(external_id=name, epoch=version, owner=owner, attempt=attempt)


def identity_of_stream(
    options: SinkOptions, attempt: str, local_property: Callable[[str], str | None]
) -> WriteIdentity:
    """The identity of a micro-batch. Raises ``UsageError`` where Spark does not say which it is."""
    query_id, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
    if not query_id or not batch_id:
        raise UsageError(
            f"the task has no property {QUERY_ID if not query_id else BATCH_ID}, by which a micro-batch is written "
            "once: write with deliveryGuarantee=at-least-once"
        )
    external_id = options.transaction_app_id or f"spark-{query_id}"
    return WriteIdentity(external_id=external_id, epoch=int(batch_id), owner=f"query {query_id}", attempt=attempt)
