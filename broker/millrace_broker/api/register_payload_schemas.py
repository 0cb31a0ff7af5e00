"""Handler of RegisterPayloadSchemas, which stores payload schemas of opaque topics by id."""

from __future__ import annotations

from functools import partial

from millrace.coordination.nodes import PayloadSchemaNode
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.payload_schemas import message_of
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("RegisterPayloadSchemas")
async def handle(
    broker: Broker, request: pb.RegisterPayloadSchemasRequest, context: RequestContext
) -> pb.RegisterPayloadSchemasResponse:
    """Register all schemas, or none. Registering the same schema again changes nothing."""
    wanted = [
        (
            schema.id,
            PayloadSchemaNode(
                kind=schema.kind,
                text=schema.text,
                references=tuple((each.name, each.subject, each.version) for each in schema.references),
                subjects=tuple((each.subject, each.version) for each in schema.subjects),
            ),
        )
        for schema in request.schemas
    ]
    register = partial(broker.payload_schemas.register, validate_only=request.validate_only)
    registered = await broker.executors.administer(register, wanted)
    return pb.RegisterPayloadSchemasResponse(schemas=[message_of(*each) for each in registered])
