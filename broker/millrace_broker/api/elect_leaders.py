"""ElectLeaders: preferred leaders are to lead again, or others where nobody in sync is left (KIP-460)."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call
from millrace_broker.broker import Broker
from millrace_broker.cluster.wire import error_messages


async def handle(broker: Broker, request: pb.ElectLeadersRequest, call: Call) -> pb.ElectLeadersResponse:
    """Elect; of each partition it is said why not."""
    return pb.ElectLeadersResponse(topics=error_messages(await broker.membership.elect_leaders(request)))
