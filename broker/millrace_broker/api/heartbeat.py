"""Handler of Heartbeat, which keeps a member's session alive and signals rebalances."""

from __future__ import annotations

from millrace.errors import CoordinatorLoadInProgressError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.identities import identity_of
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("Heartbeat")
async def handle(broker: Broker, request: pb.HeartbeatRequest, context: RequestContext) -> pb.HeartbeatResponse:
    """Record the heartbeat. Raises the errors of ``ClassicGroup.heartbeat``."""
    try:
        shard = broker.groups.shard_of(request.group_id)
    except CoordinatorLoadInProgressError:
        return pb.HeartbeatResponse()  # no error is known; sessions restart after the load
    await shard.heartbeat(request.group_id, identity_of(request))
    return pb.HeartbeatResponse()
