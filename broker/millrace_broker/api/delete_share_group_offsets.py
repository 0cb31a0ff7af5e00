"""Handler of DeleteShareGroupOffsets, which deletes a share group's offsets (KIP-932).

The request names the topics. The group must have no members.
"""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.runtime.turns import Turns


@authorized("DeleteShareGroupOffsets")
async def handle(
    broker: Broker, request: pb.DeleteShareGroupOffsetsRequest, context: RequestContext
) -> pb.DeleteShareGroupOffsetsResponse:
    """Delete the offsets. Errors are reported per topic.

    Raises ``GroupIdNotFoundError``, ``NonEmptyGroupError`` and the errors of ``ShareCoordinator.shard_of``.
    """
    shard = await broker.share_groups.wait_for_shard(request.group_id)
    shard.without_members(request.group_id)
    response, turns = pb.DeleteShareGroupOffsetsResponse(), Turns()
    for name in request.topics:
        await turns.next()
        result = response.topics.add(name=name)
        try:
            shard = broker.share_groups.shard_of(request.group_id)
            await shard.delete_offsets(request.group_id, broker.partitions.topic(name))
        except Exception as error:  # noqa: BLE001 - the topic's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response
