"""Handler of JoinGroup, which answers when the rebalance has its members.

Only ``MEMBER_ID_REQUIRED`` is part of the response, beside the id. Every other error ends the call.
"""

from __future__ import annotations

import uuid

from millrace.errors import InconsistentGroupProtocolError, MemberIdRequiredError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.group_kinds import SHARE, check_is_not
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.groups import JoinAnswer, JoinRequest, MemberIdGiven


@authorized("JoinGroup")
async def handle(broker: Broker, request: pb.JoinGroupRequest, context: RequestContext) -> pb.JoinGroupResponse:
    """Join the group. A rebalance timeout of 0 means the session timeout, as in old Kafka versions.

    Raises the errors of ``ClassicGroup.join``, and ``InconsistentGroupProtocolError`` for the id of a share group.
    """
    group_id = request.group_id
    await check_is_not(broker, group_id, SHARE, is_new=not request.member_id, error=InconsistentGroupProtocolError)
    shard = await broker.groups.wait_for_shard(group_id)
    join = JoinRequest(
        member_id=request.member_id,
        new_member_id=f"{request.group_instance_id or context.client_id}-{uuid.uuid4()}",
        group_instance_id=request.group_instance_id or None,
        client_id=context.client_id,
        client_host=context.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms or request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
    )
    answer = await shard.join(group_id, join)
    return _required(group_id, answer) if isinstance(answer, MemberIdGiven) else _joined(answer)


def _required(group_id: str, given: MemberIdGiven) -> pb.JoinGroupResponse:
    error = MemberIdRequiredError(f"join group {group_id} again with member id {given.member_id}")
    return pb.JoinGroupResponse(error=error_message(error), generation_id=-1, member_id=given.member_id)


def _joined(answer: JoinAnswer) -> pb.JoinGroupResponse:
    response = pb.JoinGroupResponse(
        generation_id=answer.generation_id,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        leader=answer.leader,
        member_id=answer.member_id,
        skip_assignment=answer.skip_assignment,
        replaced_leader=answer.replaced_leader,
    )
    for member in answer.members:
        response.members.add(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id or "",
            metadata=member.metadata,
        )
    return response
