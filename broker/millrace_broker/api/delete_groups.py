"""DeleteGroups: forget groups without members, and their offsets, each group answered by itself."""

from __future__ import annotations

from millrace.errors import GroupIdNotFoundError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.call import Call, error_message
from millrace_broker.broker import Broker


async def handle(broker: Broker, request: pb.DeleteGroupsRequest, call: Call) -> pb.DeleteGroupsResponse:
    """Delete them."""
    response = pb.DeleteGroupsResponse()
    for group_id in request.group_ids:
        result = response.results.add(group_id=group_id)
        try:
            if broker.groups.find(group_id) is not None:
                await broker.groups.shard_of(group_id, may_be_empty=True).delete_group(group_id)
            elif broker.share_groups.find(group_id) is not None:
                await broker.share_groups.shard_of(group_id).delete_group(group_id)
            else:
                raise GroupIdNotFoundError(f"there is no group {group_id}")
        except Exception as error:  # noqa: BLE001 - stands beside the group, unexpected ones are logged
            result.error.CopyFrom(error_message(error))
    return response
