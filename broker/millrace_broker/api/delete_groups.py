"""Handler of DeleteGroups, which deletes empty groups and their offsets.

Each group is deleted or refused separately.
"""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.groups import find_group
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.runtime.turns import Turns
from millrace_broker.share_groups import ShareGroup


@authorized("DeleteGroups")
async def handle(broker: Broker, request: pb.DeleteGroupsRequest, context: RequestContext) -> pb.DeleteGroupsResponse:
    """Delete the groups."""
    response, turns = pb.DeleteGroupsResponse(), Turns()
    for group_id in request.group_ids:
        await turns.next()
        result = response.results.add(group_id=group_id)
        try:
            if isinstance(find_group(broker, group_id), ShareGroup):
                await broker.share_groups.shard_of(group_id).delete_group(group_id)
            else:
                await broker.groups.shard_of(group_id, may_be_empty=True).delete_group(group_id)
        except Exception as error:  # noqa: BLE001 - the group's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response
