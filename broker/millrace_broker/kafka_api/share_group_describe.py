"""Kafka's ShareGroupDescribe call (KIP-932).

The call describes share groups with their members and assignments.
"""

from __future__ import annotations

from typing import Final

from millrace.acls import AclOperation, ResourceType
from millrace.coordinator_records import read_assignment, read_subscription
from millrace.errors import GroupIdNotFoundError
from millrace.kafka_protocol.calls.share_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    TopicPartitions,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item
from millrace_broker.api import known_error
from millrace_broker.api.common.access import Need, access_for
from millrace_broker.api.common.group_kinds import SHARE
from millrace_broker.kafka_api import operations
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import NONE, code_of
from millrace_broker.kafka_api.share_coordinators import ask
from millrace_broker.runtime.turns import Turns

_ASSIGNOR: Final = "simple"
"""Kafka's name of the only assignor of share groups."""


async def handle(message: ShareGroupDescribeRequest, request: KafkaRequest) -> ShareGroupDescribeResponse:
    """Describe the groups, each separately."""
    described, turns = [], Turns()
    for group_id in message.group_ids:
        await turns.next()
        try:
            wanted = pb.DescribeGroupsRequest(group_ids=[group_id])
            answer: pb.DescribeGroupsResponse = await ask(request, group_id, "DescribeGroups", wanted)
            (found,) = answer.groups
            check_item(found.error)
            if found.type != SHARE:
                raise GroupIdNotFoundError(f"group {group_id} is not a share group")
            _check_topics(found, request)
            described.append(_group(found, request, with_operations=message.include_authorized_operations))
        except Exception as error:  # noqa: BLE001 - the group's error; unexpected errors are logged
            known = known_error(error)
            described.append(_failed(group_id, code_of(known), known.message))
    return ShareGroupDescribeResponse(throttle_time_ms=0, groups=tuple(described))


def _check_topics(found: pb.DescribeGroupsResponse.Group, request: KafkaRequest) -> None:
    """Raise ``TopicAuthorizationError`` if the description would name a topic that the client may not describe."""
    access = access_for(request.broker, request.context)
    if access is not None:
        for name in sorted({topic for each in found.members for topic in read_subscription(each.metadata)[1].topics}):
            access.check(Need(AclOperation.DESCRIBE, ResourceType.TOPIC, name))


def _group(found: pb.DescribeGroupsResponse.Group, request: KafkaRequest, *, with_operations: bool) -> DescribedGroup:
    return DescribedGroup(
        error_code=NONE,
        group_id=found.group_id,
        group_state=found.state,
        group_epoch=found.generation_id,
        assignment_epoch=found.generation_id,
        assignor_name=_ASSIGNOR,
        members=tuple(_member(each, request) for each in found.members),
        authorized_operations=operations.bits(request, ResourceType.GROUP, found.group_id, is_wanted=with_operations),
    )


def _member(member: pb.DescribeGroupsResponse.Member, request: KafkaRequest) -> Member:
    topics = request.broker.catalog.topics
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id or None,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=read_subscription(member.metadata)[1].topics,
        assignment=Assignment(
            topic_partitions=tuple(
                TopicPartitions(topic_id=topics[each.topic].topic_id, topic_name=each.topic, partitions=each.partitions)
                for each in read_assignment(member.assignment)[1].assigned_partitions
                if each.topic in topics
            )
        ),
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


def refuse(message: ShareGroupDescribeRequest, version: int, error_code: int) -> ShareGroupDescribeResponse:
    """Answer each group with the error."""
    failed = tuple(_failed(each, error_code, None) for each in message.group_ids)
    return ShareGroupDescribeResponse(throttle_time_ms=0, groups=failed)
