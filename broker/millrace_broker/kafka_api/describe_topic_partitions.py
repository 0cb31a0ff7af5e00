"""Kafka's DescribeTopicPartitions call (KIP-966).

The call describes topics with their partitions, page by page.
"""

from __future__ import annotations

from typing import Final

from millrace.acls import AclOperation, ResourceType
from millrace.errors import InvalidRequestError
from millrace.kafka_protocol.calls.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from millrace.kafka_protocol.fields import NIL_UUID
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access import Need, access_for
from millrace_broker.api.metadata import handle as describe
from millrace_broker.kafka_api import operations
from millrace_broker.kafka_api.brokers import nodes
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.kafka_api.topics import read_id

_PARTITIONS_MAX: Final = 2000
"""Kafka's default of ``max.request.partition.size.limit``."""


async def handle(message: DescribeTopicPartitionsRequest, request: KafkaRequest) -> DescribeTopicPartitionsResponse:
    """Describe the topics by name from the cursor on, up to the limit of partitions. Raises ``InvalidRequestError``."""
    broker, cursor = request.broker, message.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise InvalidRequestError(f"the cursor is at partition {cursor.partition_index} of {cursor.topic_name}")
    names = sorted({topic.name for topic in message.topics} or _visible(request))
    names = [name for name in names if cursor is None or name >= cursor.topic_name]
    described = await describe(broker, pb.MetadataRequest(topics=names), request.context) if names else None
    alive = {node.node_id for node in nodes(broker.member, request.context.listener_name)}
    left = min(max(1, message.response_partition_limit), _PARTITIONS_MAX)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    following: DescribeTopicPartitionsResponseCursor | None = None
    for topic in described.topics if described is not None else ():
        first = cursor.partition_index if cursor is not None and cursor.topic_name == topic.name else 0
        partitions = sorted(topic.partitions, key=lambda each: each.partition)[first:]
        if left <= 0 and (partitions or topic.HasField("error")):
            following = DescribeTopicPartitionsResponseCursor(topic_name=topic.name, partition_index=first)
            break
        topics.append(_topic(topic, partitions[:left], alive, request))
        if len(partitions) > left:
            following = DescribeTopicPartitionsResponseCursor(topic_name=topic.name, partition_index=first + left)
            break
        left -= len(partitions)
    return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=tuple(topics), next_cursor=following)


def _visible(request: KafkaRequest) -> list[str]:
    """Return the topics that the client may describe. A request for all does not disclose the others."""
    topics, access = request.broker.catalog.topics, access_for(request.broker, request.context)
    needs = ((name, Need(AclOperation.DESCRIBE, ResourceType.TOPIC, name)) for name in topics)
    return [name for name, need in needs if access is None or access.would_allow(need)]


def _topic(
    topic: pb.Topic, partitions: list[pb.Partition], alive: set[int], request: KafkaRequest
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=code_of(topic.error),
        name=topic.name,
        topic_id=read_id(topic.topic_id),
        is_internal=topic.is_internal,
        partitions=tuple(
            DescribeTopicPartitionsResponsePartition(
                error_code=code_of(each.error),
                partition_index=each.partition,
                leader_id=each.leader,
                leader_epoch=each.leader_epoch,
                replica_nodes=tuple(each.replicas),
                isr_nodes=tuple(each.isr),
                eligible_leader_replicas=(),
                last_known_elr=(),
                offline_replicas=tuple(
                    number for number in each.replicas if number not in alive or number in each.failed
                ),
            )
            for each in partitions
        ),
        topic_authorized_operations=operations.bits(
            request, ResourceType.TOPIC, topic.name, is_wanted=not topic.error.code
        ),
    )


def refuse(message: DescribeTopicPartitionsRequest, version: int, error_code: int) -> DescribeTopicPartitionsResponse:
    """Answer each topic with the error."""
    return DescribeTopicPartitionsResponse(
        throttle_time_ms=0,
        topics=tuple(
            DescribeTopicPartitionsResponseTopic(
                error_code=error_code, name=each.name, topic_id=NIL_UUID, partitions=()
            )
            for each in message.topics
        ),
    )
