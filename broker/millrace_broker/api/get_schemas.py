"""Handler of GetSchemas, which returns versions of typed topics' schemas.

The request names schema ids, or a topic to get all of its versions.
"""

from __future__ import annotations

from millrace.acls import AclOperation, ResourceType
from millrace.errors import UnknownSchemaError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access import Access, Need, access_for
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
        access = access_for(broker, context)
        versions = [_find(broker, schema_id, access) for schema_id in request.ids]
    return pb.GetSchemasResponse(
        schemas=[pb.Schema(id=v.id, version=v.version, arrow_schema=v.arrow_schema) for v in versions]
    )


def _find(broker: Broker, schema_id: int, access: Access | None) -> SchemaVersion:
    """Return a schema. Raises ``UnknownSchemaError`` also if the client may not describe the schema's topic.

    The error is the same, because schema ids can be guessed.
    """
    version = broker.catalog.schemas.get(schema_id)
    if version is not None and access is not None:
        topic = next((each.name for each in broker.catalog.topics.values() if version in each.schemas), None)
        if topic is None or not access.allows(Need(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)):
            version = None
    if version is None:
        raise UnknownSchemaError(
            f"no schema that the client may see has id {schema_id}: its topic was deleted or never existed, or the "
            "client may not describe it"
        )
    return version
