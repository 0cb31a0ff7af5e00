"""Kafka's Heartbeat call, by which classic group members stay alive."""

from __future__ import annotations

from millrace.kafka_protocol.calls.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.heartbeat import handle as record
from millrace_broker.kafka_api.call import KafkaRequest


async def handle(message: HeartbeatRequest, request: KafkaRequest) -> HeartbeatResponse:
    """Record the heartbeat."""
    wanted = pb.HeartbeatRequest(
        group_id=message.group_id,
        generation_id=message.generation_id,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id or "",
    )
    await record(request.broker, wanted, request.context)
    return HeartbeatResponse(error_code=0)


def refuse(message: HeartbeatRequest, version: int, error_code: int) -> HeartbeatResponse:
    """Answer with the error."""
    return HeartbeatResponse(error_code=error_code)
