"""Kafka's DeleteGroups call, which deletes empty groups with their offsets."""

from __future__ import annotations

from typing import Final

from millrace.errors import GroupIdNotFoundError, MillraceError, NotCoordinatorError
from millrace.kafka_protocol.calls.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.delete_groups import handle as delete
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.kafka_api.share_coordinators import ask, coordinator_refusal, is_elsewhere

_NOT_HERE: Final = (GroupIdNotFoundError.code, NotCoordinatorError.code)


async def handle(message: DeleteGroupsRequest, request: KafkaRequest) -> DeleteGroupsResponse:
    """Delete the groups, each separately."""
    wanted = pb.DeleteGroupsRequest(group_ids=message.groups_names)
    answer = await delete(request.broker, wanted, request.context)
    for result in answer.results:
        if result.error.code not in _NOT_HERE:
            continue
        refusal = coordinator_refusal(request.broker, result.group_id)
        if refusal is not None:
            result.error.CopyFrom(error_message(refusal))
        elif is_elsewhere(request.broker, result.group_id):
            await _delete_shared(result, request)
    return DeleteGroupsResponse(
        throttle_time_ms=0,
        results=tuple(
            DeletableGroupResult(group_id=each.group_id, error_code=code_of(each.error)) for each in answer.results
        ),
    )


async def _delete_shared(result: pb.DeleteGroupsResponse.Result, request: KafkaRequest) -> None:
    """Let the coordinator of share groups delete a group, and replace the result."""
    wanted = pb.DeleteGroupsRequest(group_ids=[result.group_id])
    try:
        answer: pb.DeleteGroupsResponse = await ask(request, result.group_id, "DeleteGroups", wanted)
    except MillraceError as error:
        result.error.CopyFrom(error_message(error))
        return
    if answer.results[0].error.code not in _NOT_HERE:
        result.CopyFrom(answer.results[0])


def refuse(message: DeleteGroupsRequest, version: int, error_code: int) -> DeleteGroupsResponse:
    """Answer each group with the error."""
    failed = tuple(DeletableGroupResult(group_id=each, error_code=error_code) for each in message.groups_names)
    return DeleteGroupsResponse(throttle_time_ms=0, results=failed)
