"""Kafka's DeleteRecords call, which raises the log start offsets of partitions."""

from __future__ import annotations

from millrace.kafka_protocol.calls.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.delete_records import handle as delete
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of


async def handle(message: DeleteRecordsRequest, request: KafkaRequest) -> DeleteRecordsResponse:
    """Delete the records before the offsets, each partition separately."""
    wanted = pb.DeleteRecordsRequest(timeout_ms=max(0, message.timeout_ms))
    for topic in message.topics:
        offsets = wanted.topics.add(name=topic.name)
        for each in topic.partitions:
            offsets.partitions.add(partition=each.partition_index, offset=each.offset)
    answer = await delete(request.broker, wanted, request.context)
    return DeleteRecordsResponse(
        throttle_time_ms=0,
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    DeleteRecordsPartitionResult(
                        partition_index=each.partition,
                        low_watermark=each.low_watermark,
                        error_code=code_of(each.error),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in answer.topics
        ),
    )


def refuse(message: DeleteRecordsRequest, version: int, error_code: int) -> DeleteRecordsResponse:
    """Answer each partition with the error."""
    return DeleteRecordsResponse(
        throttle_time_ms=0,
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    DeleteRecordsPartitionResult(
                        partition_index=each.partition_index, low_watermark=-1, error_code=error_code
                    )
                    for each in topic.partitions
                ),
            )
            for topic in message.topics
        ),
    )
