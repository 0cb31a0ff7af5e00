"""Kafka's OffsetDelete call (KIP-496).

The call deletes committed offsets of topics to which the group is not subscribed.
"""

from __future__ import annotations

from millrace.kafka_protocol.calls.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.offset_delete import handle as delete
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of


async def handle(message: OffsetDeleteRequest, request: KafkaRequest) -> OffsetDeleteResponse:
    """Delete the offsets, each partition separately."""
    wanted = pb.OffsetDeleteRequest(
        group_id=message.group_id,
        topics=[
            pb.TopicPartitions(name=topic.name, partitions=[each.partition_index for each in topic.partitions])
            for topic in message.topics
        ],
    )
    answer = await delete(request.broker, wanted, request.context)
    return OffsetDeleteResponse(
        error_code=0,
        throttle_time_ms=0,
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(partition_index=each.partition, error_code=code_of(each.error))
                    for each in topic.partitions
                ),
            )
            for topic in answer.topics
        ),
    )


def refuse(message: OffsetDeleteRequest, version: int, error_code: int) -> OffsetDeleteResponse:
    """Answer with the error."""
    return OffsetDeleteResponse(error_code=error_code, throttle_time_ms=0, topics=())
