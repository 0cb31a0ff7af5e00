"""Handler of AddOffsetsToTxn, which adds a group's offsets to a transaction."""

from __future__ import annotations

from millrace.errors import InvalidGroupIdError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.transactions import ProducerIdAndEpoch


@authorized("AddOffsetsToTxn")
async def handle(
    broker: Broker, request: pb.AddOffsetsToTxnRequest, context: RequestContext
) -> pb.AddOffsetsToTxnResponse:
    """Add the group's partition of ``__consumer_offsets`` to the transaction."""
    if not request.group_id:
        raise InvalidGroupIdError("the group id is empty: name the group whose offsets are committed")
    await broker.transactions.add_offsets(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        request.group_id,
        coordinator_key=request.coordinator_key,
    )
    return pb.AddOffsetsToTxnResponse()
