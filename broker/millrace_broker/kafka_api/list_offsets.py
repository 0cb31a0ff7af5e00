"""Kafka's ListOffsets call, which finds offsets by timestamp."""

from __future__ import annotations

from typing import Final

from millrace.errors import LeaderNotAvailableError, OffsetNotAvailableError, UnsupportedVersionError
from millrace.kafka_protocol.calls.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.list_offsets import handle as find
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of

_WITH_EPOCH: Final = 4
_VERSION_OF_TIMESTAMP: Final = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, -6: 11}
"""First version of the request that has a special timestamp."""
_WITH_OFFSET_NOT_AVAILABLE: Final = 5
"""First version whose clients know the error of a new leader that does not know the high watermark yet (KIP-207)."""


async def handle(message: ListOffsetsRequest, request: KafkaRequest) -> ListOffsetsResponse:
    """Find the offsets, each partition separately."""
    wanted = pb.ListOffsetsRequest(isolation_level=isolation_level(message.isolation_level))
    for topic in message.topics:
        times = wanted.topics.add(name=topic.name)
        for each in topic.partitions:
            asked = times.partitions.add(partition=each.partition_index, timestamp=each.timestamp)
            if each.current_leader_epoch >= 0:
                asked.current_leader_epoch = each.current_leader_epoch
    answer = await find(request.broker, wanted, request.context)
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _partition(result, asked.timestamp, request.version)
                    for result, asked in zip(topic.partitions, times.partitions, strict=True)
                ),
            )
            for topic, times in zip(answer.topics, wanted.topics, strict=True)
        )
    )


def isolation_level(number: int) -> pb.IsolationLevel.ValueType:
    """Return the isolation level of Kafka's number."""
    return pb.READ_COMMITTED if number else pb.READ_UNCOMMITTED


def _partition(
    result: pb.ListOffsetsResponse.PartitionOffset, timestamp: int, version: int
) -> ListOffsetsPartitionResponse:
    if timestamp < 0 and version < _VERSION_OF_TIMESTAMP.get(timestamp, version + 1):
        return _failed(result.partition, UnsupportedVersionError.code)
    if result.HasField("error"):
        return _failed(result.partition, _code(result.error, version))
    return ListOffsetsPartitionResponse(
        partition_index=result.partition,
        error_code=0,
        timestamp=result.timestamp,
        offset=result.offset,
        leader_epoch=result.leader_epoch if version >= _WITH_EPOCH else -1,
    )


def _code(error: pb.Error, version: int) -> int:
    is_unknown = error.code == OffsetNotAvailableError.code and version < _WITH_OFFSET_NOT_AVAILABLE
    return LeaderNotAvailableError.code if is_unknown else code_of(error)


def _failed(partition: int, error_code: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=partition, error_code=error_code)


def refuse(message: ListOffsetsRequest, version: int, error_code: int) -> ListOffsetsResponse:
    """Answer each partition with the error."""
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(_failed(each.partition_index, error_code) for each in topic.partitions),
            )
            for topic in message.topics
        )
    )
