"""Kafka's ListGroups call, which lists groups that this broker coordinates."""

from __future__ import annotations

from millrace.kafka_protocol.calls.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.list_groups import handle as find
from millrace_broker.kafka_api.call import KafkaRequest


async def handle(message: ListGroupsRequest, request: KafkaRequest) -> ListGroupsResponse:
    """List the groups of the requested states and types."""
    wanted = pb.ListGroupsRequest(states=message.states_filter, types=message.types_filter)
    answer = await find(request.broker, wanted, request.context)
    return ListGroupsResponse(
        error_code=0,
        groups=tuple(
            ListedGroup(
                group_id=each.group_id,
                protocol_type=each.protocol_type,
                group_state=each.state,
                group_type=each.type,
            )
            for each in answer.groups
        ),
    )


def refuse(message: ListGroupsRequest, version: int, error_code: int) -> ListGroupsResponse:
    """Answer with the error."""
    return ListGroupsResponse(error_code=error_code, groups=())
