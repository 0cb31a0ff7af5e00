"""Handler of GetSchemas, which returns schemas by id, or all versions of a topic."""

from __future__ import annotations

from millrace.errors import UnknownSchemaError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.metadata import SchemaVersion


@authorized("GetSchemas")
async def handle(broker: Broker, request: pb.GetSchemasRequest, context: RequestContext) -> pb.GetSchemasResponse:
    """Return the requested schemas, in the order of the request. An opaque topic has none."""
    if request.topic:
        versions = list((await broker.partitions.find_topic(request.topic)).schemas)
    else:
        versions = [_find(broker, schema_id) for schema_id in request.ids]
    return pb.GetSchemasResponse(
        schemas=[pb.Schema(id=v.id, version=v.version, arrow_schema=v.arrow_schema) for v in versions]
    )


def _find(broker: Broker, schema_id: int) -> SchemaVersion:
    try:
        return broker.catalog.schemas[schema_id]
    except KeyError:
        raise UnknownSchemaError(f"no schema has id {schema_id}: its topic was deleted, or never existed") from None
