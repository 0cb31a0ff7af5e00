"""CommitTransactions: the transactions of several producers committed as one, under an external id."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call
from millrace_broker.broker import Broker
from millrace_broker.transactions import Member, Producer


async def handle(broker: Broker, request: pb.CommitTransactionsRequest, call: Call) -> pb.CommitTransactionsResponse:
    """Commit some and abort others, all together; or abort all, if the epoch was committed before.

    The members must have been initialised with the external id as their ``coordinator_key``, and with a
    ``transaction.timeout.ms`` that is longer than it takes from their first record to this call. What else the
    ``attempt`` has open is aborted with them.
    """
    decision = await broker.transactions.commit_together(
        request.external_id,
        request.external_epoch,
        _members(request.committed),
        _members(request.aborted),
        request.attempt,
    )
    return pb.CommitTransactionsResponse(
        was_committed_before=decision.was_committed_before, last_committed_epoch=decision.last_committed_epoch
    )


def _members(members: Iterable[pb.CommitTransactionsRequest.Member]) -> list[Member]:
    return [Member(member.transactional_id, Producer(member.producer_id, member.producer_epoch)) for member in members]
