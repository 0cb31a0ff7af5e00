"""Handler of GetPayloadSchemas, which returns some or all payload schemas."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.payload_schemas import message_of
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.metadata.payload_schemas import unknown


@authorized("GetPayloadSchemas")
async def handle(
    broker: Broker, request: pb.GetPayloadSchemasRequest, context: RequestContext
) -> pb.GetPayloadSchemasResponse:
    """Return the requested schemas in the order of the request, or all schemas by id."""
    known = broker.payload_schemas.schemas
    for schema_id in request.ids:
        if schema_id not in known:
            raise unknown(schema_id)
    ids = list(request.ids) or sorted(known)
    return pb.GetPayloadSchemasResponse(schemas=[message_of(schema_id, known[schema_id]) for schema_id in ids])
