"""Kafka's OffsetForLeaderEpoch call, which returns end offsets of epochs (KIP-320)."""

from __future__ import annotations

from millrace.kafka_protocol.calls.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.offset_for_leader_epoch import handle as find
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of

_CONSUMER = -1


async def handle(message: OffsetForLeaderEpochRequest, request: KafkaRequest) -> OffsetForLeaderEpochResponse:
    """Find the end offsets, each partition separately."""
    wanted = pb.OffsetForLeaderEpochRequest(replica_id=_CONSUMER)
    for topic in message.topics:
        epochs = wanted.topics.add(name=topic.topic)
        for each in topic.partitions:
            epochs.partitions.add(
                partition=each.partition,
                current_leader_epoch=each.current_leader_epoch,
                leader_epoch=each.leader_epoch,
            )
    answer = await find(request.broker, wanted, request.context)
    return OffsetForLeaderEpochResponse(
        throttle_time_ms=0,
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.name,
                partitions=tuple(
                    EpochEndOffset(
                        error_code=code_of(each.error),
                        partition=each.partition,
                        leader_epoch=each.end.leader_epoch,
                        end_offset=each.end.end_offset,
                    )
                    for each in topic.partitions
                ),
            )
            for topic in answer.topics
        ),
    )


def refuse(message: OffsetForLeaderEpochRequest, version: int, error_code: int) -> OffsetForLeaderEpochResponse:
    """Answer each partition with the error."""
    return OffsetForLeaderEpochResponse(
        throttle_time_ms=0,
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    EpochEndOffset(error_code=error_code, partition=each.partition) for each in topic.partitions
                ),
            )
            for topic in message.topics
        ),
    )
