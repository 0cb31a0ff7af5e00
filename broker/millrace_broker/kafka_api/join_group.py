"""Kafka's JoinGroup call, by which a consumer joins a classic group."""

from __future__ import annotations

from typing import Final

from millrace.errors import MemberIdRequiredError
from millrace.kafka_protocol.calls.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.join_group import handle as join
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of

_WITH_MEMBER_ID_REQUIRED: Final = 4
"""First version in which a new member gets an id before it joins (KIP-394)."""
_WITH_NULL_PROTOCOL: Final = 7
_WITH_SKIP_ASSIGNMENT: Final = 9
"""First version in which a leader may be told that the assignment stays (KIP-814)."""


async def handle(message: JoinGroupRequest, request: KafkaRequest) -> JoinGroupResponse:
    """Join, and answer when the rebalance has its members."""
    wanted = pb.JoinGroupRequest(
        group_id=message.group_id,
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=max(0, message.rebalance_timeout_ms),
        member_id=message.member_id,
        group_instance_id=message.group_instance_id or "",
        protocol_type=message.protocol_type,
        protocols=[pb.JoinGroupRequest.Protocol(name=each.name, metadata=each.metadata) for each in message.protocols],
        reason=message.reason or "",
    )
    answer = await join(request.broker, wanted, request.context)
    if answer.error.code == MemberIdRequiredError.code and request.version < _WITH_MEMBER_ID_REQUIRED:
        wanted.member_id = answer.member_id
        answer = await join(request.broker, wanted, request.context)
    if answer.skip_assignment and request.version < _WITH_SKIP_ASSIGNMENT:
        # The client would assign partitions. As in Kafka, it is told that the process before it leads.
        answer.skip_assignment, answer.leader = False, answer.replaced_leader
        del answer.members[:]
    return JoinGroupResponse(
        error_code=code_of(answer.error),
        generation_id=answer.generation_id,
        protocol_type=answer.protocol_type or None,
        protocol_name=answer.protocol_name or _no_protocol(request.version),
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            JoinGroupResponseMember(
                member_id=each.member_id, group_instance_id=each.group_instance_id or None, metadata=each.metadata
            )
            for each in answer.members
        ),
    )


def _no_protocol(version: int) -> str | None:
    return None if version >= _WITH_NULL_PROTOCOL else ""


def refuse(message: JoinGroupRequest, version: int, error_code: int) -> JoinGroupResponse:
    """Answer with the error."""
    return JoinGroupResponse(
        error_code=error_code,
        generation_id=-1,
        protocol_name=_no_protocol(version),
        leader="",
        member_id=message.member_id,
        members=(),
    )
