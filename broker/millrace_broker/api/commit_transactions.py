"""Handler of CommitTransactions, which commits several producers' transactions atomically."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.transactions import ProducerIdAndEpoch, TransactionalProducer


@authorized("CommitTransactions")
async def handle(
    broker: Broker, request: pb.CommitTransactionsRequest, context: RequestContext
) -> pb.CommitTransactionsResponse:
    """Commit some transactions under an external id, and abort others, atomically.

    If the external epoch was committed before, abort all of them.

    The members must have been initialised with the external id as their ``coordinator_key``. Their
    ``transaction.timeout.ms`` must exceed the time from their first record to this call. All other open transactions of
    the ``attempt`` are aborted too.
    """
    decision = await broker.transactions.commit_transactions(
        request.external_id,
        request.external_epoch,
        _members(request.committed),
        _members(request.aborted),
        request.attempt,
    )
    return pb.CommitTransactionsResponse(
        was_committed_before=decision.was_committed_before, last_committed_epoch=decision.last_committed_epoch
    )


def _members(members: Iterable[pb.CommitTransactionsRequest.Member]) -> list[TransactionalProducer]:
    return [
        TransactionalProducer(member.transactional_id, ProducerIdAndEpoch(member.producer_id, member.producer_epoch))
        for member in members
    ]
