"""DeleteShareGroupOffsets: have a share group without members forget topics (KIP-932)."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call, error_message
from millrace_broker.broker import Broker


async def handle(
    broker: Broker, request: pb.DeleteShareGroupOffsetsRequest, call: Call
) -> pb.DeleteShareGroupOffsetsResponse:
    """Forget; errors of a topic stand beside it. Raises ``GroupIdNotFoundError``, what ``shard_of`` does."""
    broker.share_groups.shard_of(request.group_id).present(request.group_id)
    response = pb.DeleteShareGroupOffsetsResponse()
    for name in request.topics:
        result = response.topics.add(name=name)
        try:
            shard = broker.share_groups.shard_of(request.group_id)
            await shard.delete_offsets(request.group_id, broker.partitions.topic(name))
        except Exception as error:  # noqa: BLE001 - stands beside the topic, unexpected ones are logged
            result.error.CopyFrom(error_message(error))
    return response
