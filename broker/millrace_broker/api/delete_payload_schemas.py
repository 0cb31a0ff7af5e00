"""Handler of DeletePayloadSchemas, which deletes payload schemas."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("DeletePayloadSchemas")
async def handle(
    broker: Broker, request: pb.DeletePayloadSchemasRequest, context: RequestContext
) -> pb.DeletePayloadSchemasResponse:
    """Delete all of the schemas, or none. Records that name their ids can no longer be decoded."""
    await broker.executors.administer(broker.payload_schemas.delete, list(request.ids))
    return pb.DeletePayloadSchemasResponse()
