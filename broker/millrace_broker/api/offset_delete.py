"""Handler of OffsetDelete, which deletes a group's offsets of unsubscribed topics (KIP-496)."""

from __future__ import annotations

from millrace.errors import MillraceError, UnknownTopicOrPartitionError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.purgatory import PartitionKey
from millrace_broker.runtime.turns import Turns


@authorized("OffsetDelete")
async def handle(broker: Broker, request: pb.OffsetDeleteRequest, context: RequestContext) -> pb.OffsetDeleteResponse:
    """Delete the offsets.

    Errors of a partition are reported per partition. Errors of ``GroupShard.delete_offsets`` end the call. As in Kafka,
    the group need not exist if no partition does.
    """
    partitions = [(topic.name, number) for topic in request.topics for number in topic.partitions]
    errors: dict[PartitionKey, MillraceError] = {}
    turns = Turns()
    for partition in partitions:
        await turns.next()
        if not _exists(broker, partition):
            errors[partition] = UnknownTopicOrPartitionError(f"{partition[0]}-{partition[1]} does not exist")
    known = [partition for partition in partitions if partition not in errors]
    if known:
        errors |= await broker.groups.shard_of(request.group_id).delete_offsets(request.group_id, known)
    response = pb.OffsetDeleteResponse()
    for topic in request.topics:
        topic_result = response.topics.add(name=topic.name)
        for number in topic.partitions:
            await turns.next()
            result = topic_result.partitions.add(partition=number)
            error = errors.get((topic.name, number))
            if error is not None:
                result.error.CopyFrom(error_message(error))
    return response


def _exists(broker: Broker, partition: PartitionKey) -> bool:
    topic = broker.catalog.topics.get(partition[0])
    return topic is not None and partition[1] in topic.partitions
