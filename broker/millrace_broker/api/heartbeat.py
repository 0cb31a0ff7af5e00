"""Heartbeat: a member lives, and learns whether it has to join again."""

from __future__ import annotations

from millrace.errors import CoordinatorLoadInProgressError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call
from millrace_broker.api.common.identities import identity_of
from millrace_broker.broker import Broker


async def handle(broker: Broker, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:
    """Note that the member lives; raises what ``Group.heartbeat`` does."""
    try:
        shard = broker.groups.shard_of(request.group_id)
    except CoordinatorLoadInProgressError:
        return pb.HeartbeatResponse()  # nothing is known against it; sessions begin anew once the group is read
    shard.heartbeat(request.group_id, identity_of(request))
    return pb.HeartbeatResponse()
