"""LeaderAndIsr: the controller says which partitions this broker leads and follows."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call
from millrace_broker.broker import Broker
from millrace_broker.cluster.wire import error_messages, read_brokers, read_leader_and_isr


async def handle(broker: Broker, request: pb.LeaderAndIsrRequest, call: Call) -> pb.LeaderAndIsrResponse:
    """Take over the roles; of each partition it is said whether it could be."""
    leaders = read_brokers(request.live_leaders)
    answers = await broker.executors.to_the_end(broker.member.leader_and_isr(read_leader_and_isr(request), leaders))
    return pb.LeaderAndIsrResponse(topics=error_messages(answers))
