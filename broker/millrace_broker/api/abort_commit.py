"""Handler of AbortCommit, which ends an attempt to commit several producers together."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("AbortCommit")
async def handle(broker: Broker, request: pb.AbortCommitRequest, context: RequestContext) -> pb.AbortCommitResponse:
    """Abort all open transactions of an external id, if the attempt is current and not committed."""
    await broker.transactions.abort_attempt(request.external_id, request.external_epoch, request.attempt)
    return pb.AbortCommitResponse()
