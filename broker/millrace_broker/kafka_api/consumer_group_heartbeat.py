"""Kafka's ConsumerGroupHeartbeat call (KIP-848).

Members join, stay in and leave a consumer group with it, and get their assignments.
"""

from __future__ import annotations

import uuid
from typing import Final

from millrace.acls import AclOperation, ResourceType
from millrace.errors import InvalidRequestError, MillraceError
from millrace.kafka_protocol.calls.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from millrace.partitions import numbers_by_topic
from millrace_broker.api.common.access import Need, access_for
from millrace_broker.api.common.access_rules import check_request
from millrace_broker.api.common.group_kinds import SHARE, check_is_not
from millrace_broker.groups import Heartbeat, Visible, every_topic
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of

_WITH_MEMBER_IDS: Final = 1
"""First version in which clients choose their member ids (KIP-1082)."""


async def handle(message: ConsumerGroupHeartbeatRequest, request: KafkaRequest) -> ConsumerGroupHeartbeatResponse:
    """Record the heartbeat, and answer with the assignment if the member does not have it."""
    groups, is_joining = request.broker.groups, message.member_epoch == 0
    member_id = message.member_id
    if is_joining and not member_id and request.version < _WITH_MEMBER_IDS:
        member_id = str(uuid.uuid4())
    try:
        check_request("ConsumerGroupHeartbeat", request.broker, message, request.context)
        if not message.group_id:
            raise InvalidRequestError("the heartbeat has no group id: set group.id")
        await check_is_not(request.broker, message.group_id, SHARE, is_new=is_joining)
        shard = await groups.wait_for_shard(message.group_id)
        answer = await shard.consumer_heartbeat(message.group_id, _heartbeat(message, member_id, request))
    except MillraceError as error:
        return ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0,
            error_code=code_of(error),
            error_message=error.message,
            member_epoch=0,
            heartbeat_interval_ms=0,
        )
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=0,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=request.broker.group_configs.get(message.group_id).consumer_heartbeat_interval_ms,
        assignment=None
        if answer.assignment is None
        else Assignment(
            topic_partitions=tuple(
                ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in numbers_by_topic(sorted(answer.assignment)).items()
            )
        ),
    )


def _heartbeat(message: ConsumerGroupHeartbeatRequest, member_id: str, request: KafkaRequest) -> Heartbeat:
    names, owned = message.subscribed_topic_names, message.topic_partitions
    return Heartbeat(
        member_id=member_id,
        member_epoch=message.member_epoch,
        instance_id=message.instance_id,
        rack_id=message.rack_id,
        client_id=request.context.client_id,
        client_host=request.context.client_host,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        topics=None if names is None else frozenset(names),
        regex=message.subscribed_topic_regex,
        server_assignor=message.server_assignor,
        visible=_visible(request),
        owned=None
        if owned is None
        else frozenset((each.topic_id, number) for each in owned for number in each.partitions),
    )


def _visible(request: KafkaRequest) -> Visible:
    """Return the rights of the client to describe topics."""
    access = access_for(request.broker, request.context)
    if access is None:
        return every_topic

    def visible(names: frozenset[str]) -> frozenset[str]:
        needs = ((name, Need(AclOperation.DESCRIBE, ResourceType.TOPIC, name)) for name in names)
        return frozenset(name for name, need in needs if access.allows(need, is_logged=False))

    return visible


def refuse(message: ConsumerGroupHeartbeatRequest, version: int, error_code: int) -> ConsumerGroupHeartbeatResponse:
    """Answer with the error."""
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0, error_code=error_code, member_epoch=0, heartbeat_interval_ms=0
    )
