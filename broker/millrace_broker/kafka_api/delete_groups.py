"""DeleteGroups: delete empty groups with their offsets."""

from __future__ import annotations

from millrace.kafka_protocol.calls.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.delete_groups import handle as delete
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of


async def handle(message: DeleteGroupsRequest, request: KafkaRequest) -> DeleteGroupsResponse:
    """Delete the groups, each separately."""
    wanted = pb.DeleteGroupsRequest(group_ids=message.groups_names)
    answer = await delete(request.broker, wanted, request.context)
    return DeleteGroupsResponse(
        throttle_time_ms=0,
        results=tuple(
            DeletableGroupResult(group_id=each.group_id, error_code=code_of(each.error)) for each in answer.results
        ),
    )


def refuse(message: DeleteGroupsRequest, version: int, error_code: int) -> DeleteGroupsResponse:
    """Answer each group with the error."""
    failed = tuple(DeletableGroupResult(group_id=each, error_code=error_code) for each in message.groups_names)
    return DeleteGroupsResponse(throttle_time_ms=0, results=failed)
