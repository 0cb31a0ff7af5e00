"""Handler of CreateAcls, which adds or refuses each ACL separately."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.acls import read_acl
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.authorizers import require_authorizer
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("CreateAcls")
async def handle(broker: Broker, request: pb.CreateAclsRequest, context: RequestContext) -> pb.CreateAclsResponse:
    """Add the ACLs, which this broker enforces when the call returns. Raises ``SecurityDisabledError``."""
    authorizer = require_authorizer(broker.authorizer)
    errors = await broker.executors.administer(authorizer.create_acls, [read_acl(each) for each in request.acls])
    response = pb.CreateAclsResponse()
    for error in errors:
        result = response.results.add()
        if error is not None:
            result.error.CopyFrom(error_message(error))
    return response
