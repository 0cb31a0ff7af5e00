"""Kafka's LeaveGroup call, by which members leave a classic group.

Before version 3 a request names one member.
"""

from __future__ import annotations

from typing import Final

from millrace.kafka_protocol.calls.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.leave_group import handle as leave
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of

_WITH_MEMBERS: Final = 3


async def handle(message: LeaveGroupRequest, request: KafkaRequest) -> LeaveGroupResponse:
    """Remove the members, each separately."""
    has_members = request.version >= _WITH_MEMBERS
    members = message.members if has_members else (MemberIdentity(member_id=message.member_id),)
    wanted = pb.LeaveGroupRequest(
        group_id=message.group_id,
        members=[
            pb.LeaveGroupRequest.Member(
                member_id=each.member_id, group_instance_id=each.group_instance_id or "", reason=each.reason or ""
            )
            for each in members
        ],
    )
    answer = await leave(request.broker, wanted, request.context)
    if not has_members:
        return LeaveGroupResponse(error_code=code_of(answer.results[0].error))
    return LeaveGroupResponse(
        error_code=0,
        members=tuple(
            MemberResponse(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id or None,
                error_code=code_of(each.error),
            )
            for each in answer.results
        ),
    )


def refuse(message: LeaveGroupRequest, version: int, error_code: int) -> LeaveGroupResponse:
    """Answer with the error."""
    return LeaveGroupResponse(error_code=error_code)
