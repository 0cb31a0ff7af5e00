"""Handler of DeleteAcls, which deletes the ACLs that match filters."""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.acls import message_of, read_filter
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.authorizers import require_authorizer
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("DeleteAcls")
async def handle(broker: Broker, request: pb.DeleteAclsRequest, context: RequestContext) -> pb.DeleteAclsResponse:
    """Delete the ACLs of each filter. Raises ``SecurityDisabledError``."""
    authorizer = require_authorizer(broker.authorizer)
    response = pb.DeleteAclsResponse()
    for each in request.filters:
        result = response.results.add()
        try:
            (outcome,) = await broker.executors.administer(authorizer.delete_acls, [read_filter(each)])
            if isinstance(outcome, MillraceError):
                raise outcome
        except MillraceError as error:
            result.error.CopyFrom(error_message(error))
        else:
            result.acls.extend(map(message_of, outcome))
    return response
