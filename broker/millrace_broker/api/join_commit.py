"""Handler of JoinCommit, which adds a producer to an external commit.

The commit is named by its external id.
"""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.transactions import Attempt


@authorized("JoinCommit")
async def handle(broker: Broker, request: pb.JoinCommitRequest, context: RequestContext) -> pb.JoinCommitResponse:
    """Assign a transactional id with a new epoch, unless the external epoch was committed before.

    The first call of an attempt aborts the open transactions of other attempts with this external id, and fences their
    producers.
    """
    attempt = Attempt(
        external_id=request.external_id,
        external_epoch=request.external_epoch,
        name=request.attempt,
        owner=request.owner,
        retention_ms=request.retention_ms,
    )
    last_committed_epoch, member = await broker.transactions.join_commit(
        attempt, timeout_ms=request.transaction_timeout_ms
    )
    response = pb.JoinCommitResponse(was_committed_before=member is None, last_committed_epoch=last_committed_epoch)
    if member is not None:
        response.transactional_id = member.transactional_id
        response.producer_id, response.producer_epoch = member.producer
    return response
