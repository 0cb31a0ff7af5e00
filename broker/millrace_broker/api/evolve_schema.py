"""Handler of EvolveSchema, which adds a version to a typed topic's schema."""

from __future__ import annotations

from functools import partial

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("EvolveSchema")
async def handle(broker: Broker, request: pb.EvolveSchemaRequest, context: RequestContext) -> pb.EvolveSchemaResponse:
    """Add the version if the topic's compatibility mode allows it, or only validate.

    The current schema changes nothing.
    """
    evolve = partial(
        broker.changes.evolve_schema, validate_only=request.validate_only, compatibility=request.compatibility
    )
    version = await broker.executors.administer(evolve, request.topic, request.arrow_schema)
    return pb.EvolveSchemaResponse(
        schema=pb.Schema(id=version.id, version=version.version, arrow_schema=version.arrow_schema)
    )
