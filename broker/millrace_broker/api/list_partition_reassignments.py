"""Handler of ListPartitionReassignments, which lists reassignments in progress (KIP-455)."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.decisions import by_topic


@authorized("ListPartitionReassignments")
async def handle(
    broker: Broker, request: pb.ListPartitionReassignmentsRequest, context: RequestContext
) -> pb.ListPartitionReassignmentsResponse:
    """List all reassignments, or those of the requested partitions."""
    response = pb.ListPartitionReassignmentsResponse()
    reassignments = await broker.member.controller_requests.reassignments(request)
    for name, partitions in by_topic(reassignments).items():
        topic = response.topics.add(name=name)
        for number, each in partitions.items():
            topic.partitions.add(partition=number, replicas=each.replicas, adding=each.adding, removing=each.removing)
    return response
