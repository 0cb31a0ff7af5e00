"""SyncGroup: the member's part of the assignment of a classic group."""

from __future__ import annotations

from millrace.kafka_protocol.calls.sync_group import SyncGroupRequest, SyncGroupResponse
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.sync_group import handle as sync
from millrace_broker.kafka_api.call import KafkaRequest


async def handle(message: SyncGroupRequest, request: KafkaRequest) -> SyncGroupResponse:
    """Wait for the leader's assignment, and answer with the member's part."""
    wanted = pb.SyncGroupRequest(
        group_id=message.group_id,
        generation_id=message.generation_id,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id or "",
        protocol_type=message.protocol_type or "",
        protocol_name=message.protocol_name or "",
        assignments=[
            pb.SyncGroupRequest.Assignment(member_id=each.member_id, assignment=each.assignment)
            for each in message.assignments
        ],
    )
    answer = await sync(request.broker, wanted, request.context)
    return SyncGroupResponse(
        error_code=0,
        protocol_type=answer.protocol_type or None,
        protocol_name=answer.protocol_name or None,
        assignment=answer.assignment,
    )


def refuse(message: SyncGroupRequest, version: int, error_code: int) -> SyncGroupResponse:
    """Answer with the error."""
    return SyncGroupResponse(error_code=error_code, assignment=b"")
