"""Handler of EndTxn, which commits or aborts a producer's transaction."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.transactions import ProducerIdAndEpoch


@authorized("EndTxn")
async def handle(broker: Broker, request: pb.EndTxnRequest, context: RequestContext) -> pb.EndTxnResponse:
    """Persist the decision, and answer with the producer's next id and epoch. The markers are written afterwards."""
    producer = await broker.transactions.end(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        committed=request.committed,
        coordinator_key=request.coordinator_key,
        keeps_epoch=request.keeps_epoch,
    )
    return pb.EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)
