"""StopReplica: the controller says that this broker is not to have partitions any more, or for now."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call
from millrace_broker.broker import Broker
from millrace_broker.cluster.wire import error_messages, read_stop_replica


async def handle(broker: Broker, request: pb.StopReplicaRequest, call: Call) -> pb.StopReplicaResponse:
    """Stop the replicas, and delete those that are to be deleted; of each it is said whether that was done."""
    answers = await broker.executors.to_the_end(broker.member.stop_replica(read_stop_replica(request)))
    return pb.StopReplicaResponse(topics=error_messages(answers))
