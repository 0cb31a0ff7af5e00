"""Handler of UpdateMetadata, by which the controller updates this broker's metadata cache."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.broker_calls import check_is_broker
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.cluster.wire import read_brokers, read_update_metadata


@authorized("UpdateMetadata")
async def handle(
    broker: Broker, request: pb.UpdateMetadataRequest, context: RequestContext
) -> pb.UpdateMetadataResponse:
    """Apply the update."""
    check_is_broker(broker, context)
    brokers = read_brokers(request.live_brokers)
    await broker.executors.to_the_end(broker.member.update_metadata(read_update_metadata(request), brokers))
    return pb.UpdateMetadataResponse()
