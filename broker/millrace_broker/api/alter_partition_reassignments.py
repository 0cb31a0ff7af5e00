"""AlterPartitionReassignments: partitions are to move to other brokers, or not any more (KIP-455)."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call
from millrace_broker.broker import Broker
from millrace_broker.cluster.wire import error_messages


async def handle(
    broker: Broker, request: pb.AlterPartitionReassignmentsRequest, call: Call
) -> pb.AlterPartitionReassignmentsResponse:
    """Begin, change or cancel; of each partition it is said why not."""
    answers = await broker.membership.reassign(request)
    return pb.AlterPartitionReassignmentsResponse(topics=error_messages(answers))
