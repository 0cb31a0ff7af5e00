"""Kafka's ConsumerGroupDescribe call (KIP-848).

The call describes consumer groups with their members and assignments.
"""

from __future__ import annotations

from typing import Final

from millrace.acls import AclOperation, ResourceType
from millrace.errors import GroupIdNotFoundError
from millrace.kafka_protocol.calls.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from millrace.partitions import numbers_by_topic
from millrace_broker.api import known_error
from millrace_broker.api.common.access import Access, Need, access_for
from millrace_broker.groups import ConsumerGroup
from millrace_broker.groups.consumer.members import NO_PARTITIONS, Partitions
from millrace_broker.kafka_api import operations
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import NONE, code_of
from millrace_broker.runtime.turns import Turns

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


async def handle(message: ConsumerGroupDescribeRequest, request: KafkaRequest) -> ConsumerGroupDescribeResponse:
    """Describe the groups, each separately."""
    access = access_for(request.broker, request.context)
    described, turns = [], Turns()
    for group_id in message.group_ids:
        await turns.next()
        try:
            if access is not None:
                access.check(Need(AclOperation.DESCRIBE, ResourceType.GROUP, group_id))
            shard = await request.broker.groups.wait_for_shard(group_id)
            entry = shard.entries.get(group_id)
            if entry is None or not isinstance(entry.group, ConsumerGroup):
                raise GroupIdNotFoundError(f"group {group_id} is not a consumer group")
            if access is not None:
                _check_topics(access, entry.group)
            described.append(_group(entry.group, request, with_operations=message.include_authorized_operations))
        except Exception as error:  # noqa: BLE001 - the group's error; unexpected errors are logged
            known = known_error(error)
            described.append(_failed(group_id, code_of(known), known.message))
    return ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=tuple(described))


def _check_topics(access: Access, group: ConsumerGroup) -> None:
    """Raise ``TopicAuthorizationError`` if the description would name a topic that the client may not describe."""
    for name in sorted({topic for member in group.members.values() for topic in group.topics_of(member)}):
        access.check(Need(AclOperation.DESCRIBE, ResourceType.TOPIC, name))


def _group(group: ConsumerGroup, request: KafkaRequest, *, with_operations: bool) -> DescribedGroup:
    groups = request.broker.groups

    def assignment(partitions: Partitions) -> Assignment:
        return Assignment(
            topic_partitions=tuple(
                TopicPartitions(topic_id=topic_id, topic_name=name, partitions=numbers)
                for topic_id, numbers in numbers_by_topic(sorted(partitions)).items()
                if (name := groups.topics.name_of(topic_id)) is not None
            )
        )

    return DescribedGroup(
        error_code=NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor(groups.consumer_settings),
        members=tuple(
            Member(
                member_id=each.member_id,
                instance_id=each.instance_id,
                rack_id=each.rack_id,
                member_epoch=each.epoch,
                client_id=each.client_id,
                client_host=each.client_host,
                subscribed_topic_names=tuple(sorted(each.topics)),
                subscribed_topic_regex=each.regex,
                assignment=assignment(each.assigned),
                target_assignment=assignment(group.target.get(each.member_id, NO_PARTITIONS)),
                member_type=_CONSUMER_MEMBER if each.classic is None else _CLASSIC_MEMBER,
            )
            for each in group.members.values()
        ),
        authorized_operations=operations.bits(request, ResourceType.GROUP, group.group_id, is_wanted=with_operations),
    )


def _failed(group_id: str, error_code: int, text: str | None) -> DescribedGroup:
    return DescribedGroup(
        error_code=error_code,
        error_message=text,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )


def refuse(message: ConsumerGroupDescribeRequest, version: int, error_code: int) -> ConsumerGroupDescribeResponse:
    """Answer each group with the error."""
    failed = tuple(_failed(each, error_code, None) for each in message.group_ids)
    return ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=failed)
