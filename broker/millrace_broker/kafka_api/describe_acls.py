"""Kafka's DescribeAcls call.

The call returns the ACLs that match a filter, by resource pattern.
"""

from __future__ import annotations

from itertools import groupby

from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.describe_acls import handle as describe
from millrace_broker.kafka_api.acls import filter_of
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of


async def handle(message: DescribeAclsRequest, request: KafkaRequest) -> DescribeAclsResponse:
    """List the ACLs."""
    asked = pb.DescribeAclsRequest(filter=filter_of(message))
    try:
        answer = await describe(request.broker, asked, request.context)
    except MillraceError as error:
        return _failed(code_of(error), error.message)
    return DescribeAclsResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message="",
        resources=tuple(
            DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern_type,
                acls=tuple(
                    AclDescription(
                        principal=each.principal,
                        host=each.host,
                        operation=each.operation,
                        permission_type=each.permission,
                    )
                    for each in acls
                ),
            )
            for (resource_type, name, pattern_type), acls in groupby(answer.acls, _pattern)
        ),
    )


def _pattern(acl: pb.Acl) -> tuple[int, str, int]:
    return acl.resource_type, acl.name, acl.pattern_type


def _failed(error_code: int, text: str | None) -> DescribeAclsResponse:
    return DescribeAclsResponse(throttle_time_ms=0, error_code=error_code, error_message=text, resources=())


def refuse(message: DescribeAclsRequest, version: int, error_code: int) -> DescribeAclsResponse:
    """Answer with the error."""
    return _failed(error_code, None)
