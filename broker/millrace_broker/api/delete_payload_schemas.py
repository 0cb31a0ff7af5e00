"""Handler of DeletePayloadSchemas, which deletes payload schemas."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call
from millrace_broker.broker import Broker


async def handle(
    broker: Broker, request: pb.DeletePayloadSchemasRequest, call: Call
) -> pb.DeletePayloadSchemasResponse:
    """Delete all of the schemas, or none. Records that name their ids can no longer be decoded."""
    await broker.executors.administer(broker.payload_schemas.delete, list(request.ids))
    return pb.DeletePayloadSchemasResponse()
