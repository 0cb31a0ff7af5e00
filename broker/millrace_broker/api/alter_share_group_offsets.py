"""Handler of AlterShareGroupOffsets, which sets a share group's start offsets (KIP-932).

The group must have no members.
"""

from __future__ import annotations

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.group_kinds import CLASSIC, check_is_not
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.coordinators import written
from millrace_broker.runtime.turns import Turns


@authorized("AlterShareGroupOffsets")
async def handle(
    broker: Broker, request: pb.AlterShareGroupOffsetsRequest, context: RequestContext
) -> pb.AlterShareGroupOffsetsResponse:
    """Set start offsets, and wait until they are persisted. Errors are reported per partition.

    The group need not exist. Raises ``NonEmptyGroupError``, ``GroupIdNotFoundError`` for the id of a consumer group,
    and the errors of ``ShareCoordinator.shard_of``.
    """
    shard = await broker.share_groups.wait_for_shard(request.group_id)
    shard.check_has_no_members(request.group_id)
    await check_is_not(broker, request.group_id, CLASSIC, is_new=True)
    response, turns = pb.AlterShareGroupOffsetsResponse(), Turns()
    for topic in request.topics:
        topic_result = response.topics.add(name=topic.name)
        for wanted in topic.partitions:
            await turns.next()
            result = topic_result.partitions.add(partition=wanted.partition)
            try:
                info = broker.share_groups.topic_with(topic.name, wanted.partition)
                if wanted.start_offset < 0:
                    raise InvalidRequestError(
                        f"offset {wanted.start_offset} of {topic.name}-{wanted.partition}: offsets start at 0"
                    )
                shard = broker.share_groups.shard_of(request.group_id)
                await written(shard.reset_offset(request.group_id, info, wanted.partition, wanted.start_offset))
            except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
                result.error.CopyFrom(error_message(error))
    return response
