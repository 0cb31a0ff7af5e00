"""Handler of LeaveGroup, which removes members, each separately.

Tools name a static member by its instance id alone.
"""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.groups import Identity


@authorized("LeaveGroup")
async def handle(broker: Broker, request: pb.LeaveGroupRequest, context: RequestContext) -> pb.LeaveGroupResponse:
    """Remove the members."""
    shard = broker.groups.shard_of(request.group_id)
    response = pb.LeaveGroupResponse()
    for member in request.members:
        result = response.results.add(member_id=member.member_id, group_instance_id=member.group_instance_id)
        identity = Identity(member_id=member.member_id, group_instance_id=member.group_instance_id or None)
        try:
            await shard.leave(request.group_id, identity)
        except Exception as error:  # noqa: BLE001 - the member's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response
