"""SyncGroup: a member asks for its part of the assignment, which the leader's call brings for all."""

from __future__ import annotations

from millrace.errors import CoordinatorLoadInProgressError, RebalanceInProgressError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call
from millrace_broker.api.common.identities import identity_of
from millrace_broker.broker import Broker
from millrace_broker.groups import SyncRequest


async def handle(broker: Broker, request: pb.SyncGroupRequest, call: Call) -> pb.SyncGroupResponse:
    """Wait for the assignment; raises what ``Group.sync`` answers with."""
    try:
        shard = broker.groups.shard_of(request.group_id)
    except CoordinatorLoadInProgressError:
        # The rebalance that this belongs to is lost: nobody else would come back to it.
        raise RebalanceInProgressError(f"group {request.group_id} is being read: join again") from None
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
