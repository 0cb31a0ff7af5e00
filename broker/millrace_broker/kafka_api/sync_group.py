"""Kafka's SyncGroup call.

The call returns the member's part of the assignment of a classic group.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import InconsistentGroupProtocolError
from millrace.kafka_protocol.calls.sync_group import SyncGroupRequest, SyncGroupResponse
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.sync_group import handle as sync
from millrace_broker.kafka_api.call import KafkaRequest

_WITH_PROTOCOL: Final = 5
"""First version whose requests name the protocol type and the assignor (KIP-559)."""


async def handle(message: SyncGroupRequest, request: KafkaRequest) -> SyncGroupResponse:
    """Wait for the leader's assignment, and answer with the member's part.

    Raises ``InconsistentGroupProtocolError`` if the protocol type or the assignor is missing.
    """
    if request.version >= _WITH_PROTOCOL and (message.protocol_type is None or message.protocol_name is None):
        raise InconsistentGroupProtocolError(
            f"SyncGroup of group {message.group_id} names no protocol type or no assignor: send both"
        )
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
