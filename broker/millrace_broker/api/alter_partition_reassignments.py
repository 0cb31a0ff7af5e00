"""Handler of AlterPartitionReassignments, which starts or cancels reassignments (KIP-455)."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.cluster.wire import error_messages


@authorized("AlterPartitionReassignments")
async def handle(
    broker: Broker, request: pb.AlterPartitionReassignmentsRequest, context: RequestContext
) -> pb.AlterPartitionReassignmentsResponse:
    """Start, change or cancel reassignments, and report each partition's error."""
    answers = await broker.member.controller_requests.reassign(request)
    return pb.AlterPartitionReassignmentsResponse(topics=error_messages(answers))
