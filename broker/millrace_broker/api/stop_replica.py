"""Handler of StopReplica, the controller's request to stop or delete replicas."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.broker_calls import check_is_broker
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.cluster.wire import error_messages, read_stop_replica


@authorized("StopReplica")
async def handle(broker: Broker, request: pb.StopReplicaRequest, context: RequestContext) -> pb.StopReplicaResponse:
    """Stop the replicas, and delete those marked for deletion. Report each partition's error."""
    check_is_broker(broker, context)
    answers = await broker.executors.to_the_end(broker.member.stop_replica(read_stop_replica(request)))
    return pb.StopReplicaResponse(topics=error_messages(answers))
