"""Handler of SyncGroup, which distributes the leader's assignment to the members."""

from __future__ import annotations

from millrace.errors import CoordinatorLoadInProgressError, RebalanceInProgressError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.identities import identity_of
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.groups import SyncRequest


@authorized("SyncGroup")
async def handle(broker: Broker, request: pb.SyncGroupRequest, context: RequestContext) -> pb.SyncGroupResponse:
    """Wait for the assignment, and answer with the member's part. Raises the errors of ``ClassicGroup.sync``."""
    try:
        shard = broker.groups.shard_of(request.group_id)
    except CoordinatorLoadInProgressError:
        # The rebalance in progress was lost with the earlier coordinator. Only a new join ends it.
        raise RebalanceInProgressError(f"group {request.group_id} is being loaded: join again") from None
    sync = SyncRequest(
        identity=identity_of(request),
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={each.member_id: each.assignment for each in request.assignments},
    )
    answer = await shard.sync(request.group_id, sync)
    return pb.SyncGroupResponse(
        protocol_type=answer.protocol_type, protocol_name=answer.protocol_name, assignment=answer.assignment
    )
