"""Handler of ElectLeaders, for preferred and unclean leader elections (KIP-460)."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.cluster.wire import error_messages


@authorized("ElectLeaders")
async def handle(broker: Broker, request: pb.ElectLeadersRequest, context: RequestContext) -> pb.ElectLeadersResponse:
    """Elect leaders, and report each partition's error."""
    answers = await broker.member.controller_requests.elect_leaders(request)
    return pb.ElectLeadersResponse(topics=error_messages(answers))
