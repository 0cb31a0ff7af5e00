"""Kafka's AlterShareGroupOffsets call (KIP-932).

The call sets start offsets of a share group without members.
"""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import NONE, code_of, text_of
from millrace_broker.kafka_api.share_coordinators import ask
from millrace_broker.kafka_api.topics import id_of, visible_id


async def handle(message: AlterShareGroupOffsetsRequest, request: KafkaRequest) -> AlterShareGroupOffsetsResponse:
    """Set the offsets, each partition separately."""
    wanted = pb.AlterShareGroupOffsetsRequest(group_id=message.group_id)
    for topic in message.topics:
        asked = wanted.topics.add(name=topic.topic_name)
        for each in topic.partitions:
            asked.partitions.add(partition=each.partition_index, start_offset=each.start_offset)
    try:
        answer: pb.AlterShareGroupOffsetsResponse = await ask(
            request, message.group_id, "AlterShareGroupOffsets", wanted
        )
    except MillraceError as error:
        return _failed(code_of(error), error.message)
    catalog = request.broker.catalog
    return AlterShareGroupOffsetsResponse(
        throttle_time_ms=0,
        error_code=NONE,
        responses=tuple(
            AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.name,
                topic_id=visible_id(id_of(catalog, topic.name), [each.error for each in topic.partitions]),
                partitions=tuple(
                    AlterShareGroupOffsetsResponsePartition(
                        partition_index=each.partition,
                        error_code=code_of(each.error),
                        error_message=text_of(each.error),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in answer.topics
        ),
    )


def _failed(error_code: int, text: str | None) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(throttle_time_ms=0, error_code=error_code, error_message=text, responses=())


def refuse(message: AlterShareGroupOffsetsRequest, version: int, error_code: int) -> AlterShareGroupOffsetsResponse:
    """Answer with the error."""
    return _failed(error_code, None)
