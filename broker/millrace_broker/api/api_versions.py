"""ApiVersions: what this broker is. Clients also use it to see whether it is ready."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Final

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call
from millrace_broker.broker import Broker

PROTOCOL_VERSION: Final = 1


async def handle(broker: Broker, request: pb.ApiVersionsRequest, call: Call) -> pb.ApiVersionsResponse:
    """Answer with the versions of software and protocol, who this is, and where it answers frames."""
    return pb.ApiVersionsResponse(
        software_version=software_version(),
        protocol_version=PROTOCOL_VERSION,
        broker_id=broker.config.broker_id,
        cluster_id=broker.cluster_id,
        frame_port=broker.frame_port,
    )


@cache
def software_version() -> str:
    """The version of the installed software."""
    return version("millrace")
