"""Kafka's DescribeGroups call, which describes classic groups with their members."""

from __future__ import annotations

from typing import Final

from millrace.acls import ResourceType
from millrace.errors import GroupIdNotFoundError
from millrace.kafka_protocol.calls.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.group_kinds import CLASSIC
from millrace_broker.api.describe_groups import handle as describe
from millrace_broker.kafka_api import operations
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import NONE, code_of, text_of
from millrace_broker.kafka_api.share_coordinators import coordinator_refusal

_WITH_NOT_FOUND: Final = 6
"""First version in which a group that does not exist is an error (KIP-1043). Before, it is a dead group."""
_DEAD: Final = "Dead"


async def handle(message: DescribeGroupsRequest, request: KafkaRequest) -> DescribeGroupsResponse:
    """Describe the groups, each separately."""
    answer = await describe(request.broker, pb.DescribeGroupsRequest(group_ids=message.groups), request.context)
    for group in answer.groups:
        _check(group, request)
    return DescribeGroupsResponse(
        groups=tuple(
            _group(
                group,
                request.version,
                operations.bits(
                    request, ResourceType.GROUP, group.group_id, is_wanted=message.include_authorized_operations
                ),
            )
            for group in answer.groups
        )
    )


def _check(group: pb.DescribeGroupsResponse.Group, request: KafkaRequest) -> None:
    """Set the error of a group that is not a classic group of this coordinator."""
    if not group.error.code and group.type != CLASSIC:
        group.error.code = GroupIdNotFoundError.code
        group.error.message = f"group {group.group_id} is not a classic group"
    if group.error.code == GroupIdNotFoundError.code:
        refusal = coordinator_refusal(request.broker, group.group_id)
        if refusal is not None:
            group.error.CopyFrom(error_message(refusal))


def _group(group: pb.DescribeGroupsResponse.Group, version: int, authorized_operations: int) -> DescribedGroup:
    error_code, text = code_of(group.error), text_of(group.error)
    if error_code == GroupIdNotFoundError.code and version < _WITH_NOT_FOUND:
        return _failed(group.group_id, NONE, None, _DEAD, authorized_operations)
    if error_code:
        has_text = version >= _WITH_NOT_FOUND
        return _failed(group.group_id, error_code, text if has_text else None, state=_DEAD if has_text else "")
    return DescribedGroup(
        error_code=NONE,
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=tuple(
            DescribedGroupMember(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id or None,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata,
                member_assignment=each.assignment,
            )
            for each in group.members
        ),
        authorized_operations=authorized_operations,
    )


def _failed(
    group_id: str, error_code: int, text: str | None, state: str = "", authorized_operations: int = operations.NOT_ASKED
) -> DescribedGroup:
    return DescribedGroup(
        error_code=error_code,
        error_message=text,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=(),
        authorized_operations=authorized_operations,
    )


def refuse(message: DescribeGroupsRequest, version: int, error_code: int) -> DescribeGroupsResponse:
    """Answer each group with the error."""
    return DescribeGroupsResponse(groups=tuple(_failed(each, error_code, None) for each in message.groups))
