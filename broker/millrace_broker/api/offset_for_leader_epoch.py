"""Handler of OffsetForLeaderEpoch, which returns end offsets of leader epochs (KIP-320)."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.leader_epochs import check_epoch, end_of_epoch
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.runtime.turns import Turns


@authorized("OffsetForLeaderEpoch")
async def handle(
    broker: Broker, request: pb.OffsetForLeaderEpochRequest, context: RequestContext
) -> pb.OffsetForLeaderEpochResponse:
    """Look up the end offsets, each partition separately. A request with another current leader epoch gets an error."""
    response, turns = pb.OffsetForLeaderEpochResponse(), Turns()
    for topic_epochs in request.topics:
        topic_ends = response.topics.add(name=topic_epochs.name)
        for wanted in topic_epochs.partitions:
            await turns.next()
            result = topic_ends.partitions.add(partition=wanted.partition)
            try:
                partition = broker.partitions.led(broker.partitions.topic(topic_epochs.name), wanted.partition)
                check_epoch(partition, wanted.current_leader_epoch)
                result.end.CopyFrom(end_of_epoch(partition.log, wanted.leader_epoch))
            except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
                result.end.leader_epoch = result.end.end_offset = -1
                result.error.CopyFrom(error_message(error))
    return response
