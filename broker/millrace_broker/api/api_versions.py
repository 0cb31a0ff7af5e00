"""Handler of ApiVersions, which identifies this broker.

The call also serves as a readiness check.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Final

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker

PROTOCOL_VERSION: Final = 1


@authorized("ApiVersions")
async def handle(broker: Broker, request: pb.ApiVersionsRequest, context: RequestContext) -> pb.ApiVersionsResponse:
    """Answer with the software and protocol versions, the broker's and cluster's ids, and its listeners."""
    return pb.ApiVersionsResponse(
        software_version=software_version(),
        protocol_version=PROTOCOL_VERSION,
        broker_id=broker.config.broker_id,
        cluster_id=broker.cluster_id,
        endpoints=endpoints(broker),
    )


def endpoints(broker: Broker) -> list[pb.Endpoint]:
    """Return the advertised listeners of this broker with their protocols."""
    return [
        pb.Endpoint(listener=name, host=address.host, port=address.port, protocol=broker.config.protocol_of(name))
        for name, address in broker.endpoints.items()
    ]


@cache
def software_version() -> str:
    """Return the version of the installed software."""
    return version("millrace")
