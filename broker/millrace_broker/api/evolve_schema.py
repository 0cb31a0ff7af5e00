"""EvolveSchema: a new version of a typed topic's schema."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.call import Call
from millrace_broker.broker import Broker


async def handle(broker: Broker, request: pb.EvolveSchemaRequest, call: Call) -> pb.EvolveSchemaResponse:
    """Add the version, which may only add nullable columns at the end; the present schema again changes nothing."""
    version = await broker.administer(broker.changes.evolve_schema, request.topic, request.arrow_schema)
    return pb.EvolveSchemaResponse(
        schema=pb.Schema(id=version.id, version=version.version, arrow_schema=version.arrow_schema)
    )
