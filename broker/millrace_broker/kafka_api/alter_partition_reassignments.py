"""Kafka's AlterPartitionReassignments call, which starts, changes or cancels reassignments (KIP-455)."""

from __future__ import annotations

from millrace.kafka_protocol.calls.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.alter_partition_reassignments import handle as alter
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, text_of


async def handle(
    message: AlterPartitionReassignmentsRequest, request: KafkaRequest
) -> AlterPartitionReassignmentsResponse:
    """Change the reassignments, each partition separately. No replicas means that a reassignment is cancelled."""
    wanted = pb.AlterPartitionReassignmentsRequest(
        timeout_ms=max(0, message.timeout_ms),
        keeps_replication_factor=not message.allow_replication_factor_change,
    )
    for topic in message.topics:
        targets = wanted.topics.add(name=topic.name)
        for each in topic.partitions:
            targets.partitions.add(
                partition=each.partition_index, replicas=each.replicas or (), is_cancelled=each.replicas is None
            )
    answer = await alter(request.broker, wanted, request.context)
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        allow_replication_factor_change=message.allow_replication_factor_change,
        error_code=0,
        error_message=None,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ReassignablePartitionResponse(
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


def refuse(
    message: AlterPartitionReassignmentsRequest, version: int, error_code: int
) -> AlterPartitionReassignmentsResponse:
    """Answer with the error."""
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=error_code, error_message=None, responses=()
    )
