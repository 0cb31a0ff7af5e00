"""Kafka's CreatePartitions call, which adds partitions to topics."""

from __future__ import annotations

from typing import Final

from millrace.kafka_protocol.calls.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.create_partitions import handle as create
from millrace_broker.broker import Broker
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, text_of

_WITH_QUOTA_ERROR: Final = 3
"""First version whose clients know the error THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def handle(message: CreatePartitionsRequest, request: KafkaRequest) -> CreatePartitionsResponse:
    """Raise the partition counts, each topic separately."""
    wanted = pb.CreatePartitionsRequest(
        topics=[_count(request.broker, topic) for topic in message.topics],
        timeout_ms=max(0, message.timeout_ms),
        validate_only=message.validate_only,
    )
    request.refuse_mutations(_WITH_QUOTA_ERROR)
    answer = await create(request.broker, wanted, request.context)
    return CreatePartitionsResponse(
        throttle_time_ms=0,
        results=tuple(
            CreatePartitionsTopicResult(
                name=each.name, error_code=code_of(each.error), error_message=text_of(each.error)
            )
            for each in answer.results
        ),
    )


def _count(broker: Broker, topic: CreatePartitionsTopic) -> pb.CreatePartitionsRequest.TopicCount:
    """Return the request for one topic. Kafka's assignments are those of the new partitions, in their order."""
    known = broker.catalog.topics.get(topic.name)
    first = 0 if known is None else len(known.partitions)
    return pb.CreatePartitionsRequest.TopicCount(
        name=topic.name,
        count=topic.count,
        assignment=[
            pb.PartitionReplicas(partition=first + place, replicas=each.broker_ids)
            for place, each in enumerate(topic.assignments or ())
        ],
    )


def refuse(message: CreatePartitionsRequest, version: int, error_code: int) -> CreatePartitionsResponse:
    """Answer each topic with the error."""
    failed = tuple(CreatePartitionsTopicResult(name=each.name, error_code=error_code) for each in message.topics)
    return CreatePartitionsResponse(throttle_time_ms=0, results=failed)
