"""Handler of DescribeAcls, which lists ACLs."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.acls import message_of, read_filter
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.authorizers import require_authorizer
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("DescribeAcls")
async def handle(broker: Broker, request: pb.DescribeAclsRequest, context: RequestContext) -> pb.DescribeAclsResponse:
    """List the ACLs that match. Raises ``SecurityDisabledError``, ``InvalidRequestError``."""
    found = require_authorizer(broker.authorizer).acls(read_filter(request.filter))
    return pb.DescribeAclsResponse(acls=map(message_of, found))
