"""Handler of Metadata, which describes brokers, topics, partitions and their leaders."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

from millrace.acls import AclOperation, ResourceType
from millrace.config.topic import KafkaValueFormat
from millrace.coordinator_records import INTERNAL_TOPICS
from millrace.errors import ListenerNotFoundError, MillraceError, TopicExistsError, UnknownTopicOrPartitionError
from millrace.protocol import millrace_pb2 as pb
from millrace.schemas import deserialize_schema, serialize_schema
from millrace_broker.api.common.access import Need, access_for
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.metadata import PartitionInfo, TopicInfo, TopicSpec, topic_rules
from millrace_broker.metadata.topics import LEADER_NONE
from millrace_broker.runtime.turns import Turns

_CREATION_WAIT_MS: Final = 5_000
"""Time that a request waits for the leaders of a topic that it auto-created."""


@authorized("Metadata")
async def handle(broker: Broker, request: pb.MetadataRequest, context: RequestContext) -> pb.MetadataResponse:
    """Describe the requested topics, or all, and the brokers with the listener by which the request came.

    An unknown topic gets an error, or is created if auto-creation is enabled. A name that no topic can have gets the
    error ``InvalidTopicError``, so that clients do not wait for the topic.
    """
    live_brokers = broker.member.live_brokers()
    unreachable = {each.broker_id for each in live_brokers if context.listener_name not in each.endpoints}
    response = pb.MetadataResponse(cluster_id=broker.cluster_id, controller_id=broker.member.controller_id)
    for live in live_brokers:
        if live.broker_id not in unreachable:
            host, port = live.endpoints[context.listener_name]
            response.brokers.add(node_id=live.broker_id, host=host, port=port, rack=live.rack)
    turns = Turns()
    for name in () if request.no_topics else request.topics or tuple(broker.catalog.topics):
        await turns.next()
        if not request.topics and name not in broker.catalog.topics:
            continue  # deleted meanwhile, and not to be created again
        topic = response.topics.add(name=name)
        try:
            info = await _find(broker, name, context, may_create=request.allow_auto_topic_creation)
            _describe(topic, info, include_schema=request.include_schemas)
            if unreachable:
                _hide_leaders(topic, unreachable, context.listener_name)
        except MillraceError as error:
            topic.error.CopyFrom(error_message(error))
    return response


async def _find(broker: Broker, name: str, context: RequestContext, *, may_create: bool) -> TopicInfo:
    if name not in broker.catalog.topics:
        topic_rules.check_topic_name(name)
    try:
        return await broker.partitions.find_topic(name)
    except UnknownTopicOrPartitionError:
        if not (may_create and broker.config.auto_create_topics_enable) or name in INTERNAL_TOPICS:
            raise
    _check_creation(broker, name, context)
    usage = context.usage
    if usage is not None:
        usage.check_mutation()
    with contextlib.suppress(TopicExistsError):  # another call created it first
        created = await broker.executors.administer(broker.changes.create, TopicSpec(name=name))
        if usage is not None and created is not None:
            usage.mutated(len(created.partitions))
    await broker.member.topics.led([name], _CREATION_WAIT_MS)
    return broker.partitions.topic(name)


def _check_creation(broker: Broker, name: str, context: RequestContext) -> None:
    """Raise ``TopicAuthorizationError`` if the client may not create the topic.

    The call's rule has checked only topics that were missing then. Other topics may have been deleted since.
    """
    access = access_for(broker, context)
    need = Need(AclOperation.CREATE, ResourceType.TOPIC, name)
    if access is not None and not any(
        access.would_allow(each) for each in (need, Need(AclOperation.CREATE, ResourceType.CLUSTER))
    ):
        access.check(need)


def _describe(topic: pb.Topic, info: TopicInfo, *, include_schema: bool) -> None:
    topic.topic_id = info.topic_id.bytes
    topic.is_internal = info.is_internal
    topic.schema_id = info.schema_id
    topic.key_columns.extend(info.key_columns)
    topic.partitions.extend(_partition(partition) for partition in info.partitions.values())
    if include_schema and info.is_typed:
        newest = info.schemas[-1]
        topic.schema.CopyFrom(pb.Schema(id=newest.id, version=newest.version, arrow_schema=newest.arrow_schema))
        topic.read_schema = _read_schema(info)


def _read_schema(info: TopicInfo) -> bytes:
    """Return the schema in which clients read all rows. It is empty if the newest version serves.

    Kafka clients delete a key by a record without a value, whose row has only key columns.
    """
    if not info.key_columns or info.config.kafka_value_format is KafkaValueFormat.NONE:
        return info.read_schema
    return _with_null_values(info.read_schema or info.schemas[-1].arrow_schema, info.key_columns)


@lru_cache(maxsize=256)
def _with_null_values(schema: bytes, key_columns: Sequence[str]) -> bytes:
    fields = [each if each.name in key_columns else each.with_nullable(True) for each in deserialize_schema(schema)]
    return serialize_schema(pa.schema(fields))


def _hide_leaders(topic: pb.Topic, unreachable: set[int], listener: str) -> None:
    """Give partitions an error whose leaders do not have the listener of the client (KIP-103)."""
    for partition in topic.partitions:
        if partition.leader in unreachable:
            error = ListenerNotFoundError(
                f"broker {partition.leader} leads {topic.name}-{partition.partition} and has no listener {listener}: "
                "give all brokers of the cluster the same listeners"
            )
            partition.leader = LEADER_NONE
            partition.error.CopyFrom(error_message(error))


def _partition(info: PartitionInfo) -> pb.Partition:
    partition = pb.Partition(
        partition=info.partition,
        leader=info.leader,
        leader_epoch=info.leader_epoch,
        replicas=info.replicas,
        isr=info.isr,
        failed=info.failed,
    )
    if info.leader == LEADER_NONE:
        partition.error.code = 5
        partition.error.message = f"partition {info.partition} has no leader now"
    return partition
