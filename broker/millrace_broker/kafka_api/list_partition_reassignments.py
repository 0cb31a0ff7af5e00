"""Kafka's ListPartitionReassignments call, which lists reassignments in progress (KIP-455)."""

from __future__ import annotations

from millrace.kafka_protocol.calls.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.list_partition_reassignments import handle as find
from millrace_broker.kafka_api.call import KafkaRequest


async def handle(
    message: ListPartitionReassignmentsRequest, request: KafkaRequest
) -> ListPartitionReassignmentsResponse:
    """List all reassignments, or those of the named partitions."""
    wanted = pb.ListPartitionReassignmentsRequest(
        topics=[
            pb.TopicPartitions(name=topic.name, partitions=topic.partition_indexes) for topic in message.topics or ()
        ],
        all_topics=message.topics is None,
    )
    answer = await find(request.broker, wanted, request.context)
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        topics=tuple(
            OngoingTopicReassignment(
                name=topic.name,
                partitions=tuple(
                    OngoingPartitionReassignment(
                        partition_index=each.partition,
                        replicas=tuple(each.replicas),
                        adding_replicas=tuple(each.adding),
                        removing_replicas=tuple(each.removing),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in answer.topics
        ),
    )


def refuse(
    message: ListPartitionReassignmentsRequest, version: int, error_code: int
) -> ListPartitionReassignmentsResponse:
    """Answer with the error."""
    return ListPartitionReassignmentsResponse(throttle_time_ms=0, error_code=error_code, error_message=None, topics=())
