"""Kafka's DeleteAcls call, which deletes the ACLs that match filters."""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.delete_acls import handle as delete
from millrace_broker.kafka_api.acls import filter_of
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, text_of


async def handle(message: DeleteAclsRequest, request: KafkaRequest) -> DeleteAclsResponse:
    """Delete the ACLs of each filter."""
    wanted = pb.DeleteAclsRequest(filters=map(filter_of, message.filters))
    try:
        answer = await delete(request.broker, wanted, request.context)
    except MillraceError as error:
        return _failed(message, code_of(error), error.message)
    return DeleteAclsResponse(
        throttle_time_ms=0,
        filter_results=tuple(
            DeleteAclsFilterResult(
                error_code=code_of(result.error),
                error_message=text_of(result.error),
                matching_acls=tuple(map(_deleted, result.acls)),
            )
            for result in answer.results
        ),
    )


def _deleted(acl: pb.Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=0,
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _failed(message: DeleteAclsRequest, error_code: int, text: str | None) -> DeleteAclsResponse:
    failed = tuple(
        DeleteAclsFilterResult(error_code=error_code, error_message=text, matching_acls=()) for _ in message.filters
    )
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=failed)


def refuse(message: DeleteAclsRequest, version: int, error_code: int) -> DeleteAclsResponse:
    """Answer each filter with the error."""
    return _failed(message, error_code, None)
