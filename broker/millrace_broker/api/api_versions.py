"""ApiVersions: what this broker is. Clients also use it to see whether it is ready."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Final

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.call import Call
from millrace_broker.broker import Broker

PROTOCOL_VERSION: Final = 1


async def handle(broker: Broker, request: pb.ApiVersionsRequest, call: Call) -> pb.ApiVersionsResponse:
    """Answer with the versions of software and protocol."""
    return pb.ApiVersionsResponse(software_version=_software_version(), protocol_version=PROTOCOL_VERSION)


@cache
def _software_version() -> str:
    return version("millrace")
