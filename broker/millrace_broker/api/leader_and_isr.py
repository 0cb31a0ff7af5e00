"""Handler of LeaderAndIsr, which makes this broker leader or follower of partitions."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.broker_calls import check_is_broker
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.cluster.wire import error_messages, read_brokers, read_leader_and_isr


@authorized("LeaderAndIsr")
async def handle(broker: Broker, request: pb.LeaderAndIsrRequest, context: RequestContext) -> pb.LeaderAndIsrResponse:
    """Apply the leader and follower states, and report each partition's error."""
    check_is_broker(broker, context)
    leaders = read_brokers(request.live_leaders)
    answers = await broker.executors.to_the_end(broker.member.leader_and_isr(read_leader_and_isr(request), leaders))
    return pb.LeaderAndIsrResponse(topics=error_messages(answers))
