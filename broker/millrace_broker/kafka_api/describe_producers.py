"""Kafka's DescribeProducers call, which returns partitions' active producers (KIP-664)."""

from __future__ import annotations

from millrace.kafka_protocol.calls.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.describe_producers import handle as describe
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, text_of


async def handle(message: DescribeProducersRequest, request: KafkaRequest) -> DescribeProducersResponse:
    """Describe the producers, each partition separately."""
    wanted = pb.DescribeProducersRequest(
        topics=[pb.TopicPartitions(name=topic.name, partitions=topic.partition_indexes) for topic in message.topics]
    )
    answer = await describe(request.broker, wanted, request.context)
    return DescribeProducersResponse(
        throttle_time_ms=0,
        topics=tuple(
            TopicResponse(name=topic.name, partitions=tuple(_partition(each) for each in topic.partitions))
            for topic in answer.topics
        ),
    )


def _partition(result: pb.DescribeProducersResponse.PartitionProducers) -> PartitionResponse:
    return PartitionResponse(
        partition_index=result.partition,
        error_code=code_of(result.error),
        error_message=text_of(result.error),
        active_producers=tuple(
            ProducerState(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp_ms,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.transaction_start_offset,
            )
            for each in result.producers
        ),
    )


def refuse(message: DescribeProducersRequest, version: int, error_code: int) -> DescribeProducersResponse:
    """Answer each partition with the error."""
    return DescribeProducersResponse(
        throttle_time_ms=0,
        topics=tuple(
            TopicResponse(
                name=topic.name,
                partitions=tuple(
                    PartitionResponse(partition_index=number, error_code=error_code, active_producers=())
                    for number in topic.partition_indexes
                ),
            )
            for topic in message.topics
        ),
    )
