"""Kafka's CreateAcls call, which adds or refuses each ACL separately."""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.create_acls import handle as create
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, text_of


async def handle(message: CreateAclsRequest, request: KafkaRequest) -> CreateAclsResponse:
    """Add the ACLs."""
    wanted = pb.CreateAclsRequest(
        acls=[
            pb.Acl(
                resource_type=each.resource_type,
                name=each.resource_name,
                pattern_type=each.resource_pattern_type,
                principal=each.principal,
                host=each.host,
                operation=each.operation,
                permission=each.permission_type,
            )
            for each in message.creations
        ]
    )
    try:
        answer = await create(request.broker, wanted, request.context)
    except MillraceError as error:
        return _failed(message, code_of(error), error.message)
    return CreateAclsResponse(
        throttle_time_ms=0,
        results=tuple(
            AclCreationResult(error_code=code_of(each.error), error_message=text_of(each.error, ""))
            for each in answer.results
        ),
    )


def _failed(message: CreateAclsRequest, error_code: int, text: str | None) -> CreateAclsResponse:
    results = tuple(AclCreationResult(error_code=error_code, error_message=text) for _ in message.creations)
    return CreateAclsResponse(throttle_time_ms=0, results=results)


def refuse(message: CreateAclsRequest, version: int, error_code: int) -> CreateAclsResponse:
    """Answer each ACL with the error."""
    return _failed(message, error_code, None)
