"""Kafka's Metadata call.

The call describes brokers, and topics with their partitions and leaders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from millrace.acls import ResourceType
from millrace.errors import (
    InvalidRequestError,
    LeaderNotAvailableError,
    ListenerNotFoundError,
    TopicAuthorizationError,
    UnknownTopicIdError,
)
from millrace.kafka_protocol.calls.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millrace.kafka_protocol.fields import NIL_UUID
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.metadata import handle as describe
from millrace_broker.kafka_api import operations
from millrace_broker.kafka_api.brokers import nodes
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.kafka_api.topics import name_of, read_id
from millrace_broker.runtime.turns import Turns

_EMPTY_IS_NONE: Final = 1
"""From this version on, an empty list of topics asks for none. Before, it asks for all."""
_WITH_LISTENER_ERROR: Final = 6
"""From this version on, clients know the error of a leader without their listener (KIP-222)."""
_WITH_IDS: Final = 12
"""First version whose requests may name topics by id. Kafka refuses ids in the two versions before, which have them."""
_WITH_ERROR: Final = 13


async def handle(message: MetadataRequest, request: KafkaRequest) -> MetadataResponse:
    """Describe the brokers, and the requested topics or all. Raises ``InvalidRequestError``."""
    broker = request.broker
    has_ids = any(each.name is None or each.topic_id != NIL_UUID for each in message.topics or ())
    if has_ids and request.version < _WITH_IDS:
        raise InvalidRequestError(f"topics are named by their ids in version {_WITH_IDS} and later")
    found, turns = [], Turns()
    names = []
    ids: dict[str, UUID] = {}
    # As in Kafka, a topic that is named twice is answered once.
    for wanted_name, topic_id in dict.fromkeys((each.name, each.topic_id) for each in message.topics or ()):
        await turns.next()
        try:
            names.append(name_of(broker.catalog, wanted_name, topic_id))
            if not wanted_name:
                ids[names[-1]] = topic_id
        except UnknownTopicIdError as error:
            found.append(_unknown_id(topic_id, code_of(error)))
    brokers = tuple(nodes(broker.member, request.context.listener_name))
    alive = {node.node_id for node in brokers}
    wants_all = message.topics is None or (not message.topics and request.version < _EMPTY_IS_NONE)
    if wants_all or names:
        asked = pb.MetadataRequest(topics=names, allow_auto_topic_creation=message.allow_auto_topic_creation)
        described = await describe(broker, asked, request.context)
        with_operations = message.include_topic_authorized_operations
        for topic in described.topics:
            await turns.next()
            found.append(_topic(topic, alive, request, ids, with_operations=with_operations))
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in brokers
        ),
        cluster_id=broker.cluster_id,
        controller_id=broker.member.controller_id,
        topics=tuple(found),
        cluster_authorized_operations=operations.bits(
            request, ResourceType.CLUSTER, is_wanted=message.include_cluster_authorized_operations
        ),
    )


def _topic(
    topic: pb.Topic, alive: set[int], request: KafkaRequest, ids: Mapping[str, UUID], *, with_operations: bool
) -> MetadataResponseTopic:
    if topic.error.code == TopicAuthorizationError.code and topic.name in ids:
        return _unknown_id(ids[topic.name], topic.error.code)  # the name of an id is not disclosed
    return MetadataResponseTopic(
        error_code=code_of(topic.error),
        name=topic.name,
        topic_id=read_id(topic.topic_id),
        is_internal=topic.is_internal,
        partitions=tuple(
            MetadataResponsePartition(
                error_code=_partition_error(each.error, request.version),
                partition_index=each.partition,
                leader_id=each.leader,
                leader_epoch=each.leader_epoch,
                replica_nodes=tuple(each.replicas),
                isr_nodes=tuple(each.isr),
                offline_replicas=tuple(
                    number for number in each.replicas if number not in alive or number in each.failed
                ),
            )
            for each in topic.partitions
        ),
        topic_authorized_operations=operations.bits(
            request, ResourceType.TOPIC, topic.name, is_wanted=with_operations and not topic.error.code
        ),
    )


def _partition_error(error: pb.Error, version: int) -> int:
    code = code_of(error)
    is_unknown = code == ListenerNotFoundError.code and version < _WITH_LISTENER_ERROR
    return LeaderNotAvailableError.code if is_unknown else code


def _unknown_id(topic_id: UUID, error_code: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error_code, name=None, topic_id=topic_id, partitions=())


def refuse(message: MetadataRequest, version: int, error_code: int) -> MetadataResponse:
    """Answer each topic with the error, as Kafka does before version 13 has an error of its own."""
    topics = tuple(
        MetadataResponseTopic(error_code=error_code, name=each.name or "", topic_id=each.topic_id, partitions=())
        for each in message.topics or ()
    )
    return MetadataResponse(brokers=(), topics=topics, error_code=error_code if version >= _WITH_ERROR else 0)
