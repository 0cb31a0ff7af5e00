"""Handler of InitProducerId for idempotent and transactional producers."""

from __future__ import annotations

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.transactions import ProducerIdAndEpoch


@authorized("InitProducerId")
async def handle(
    broker: Broker, request: pb.InitProducerIdRequest, context: RequestContext
) -> pb.InitProducerIdResponse:
    """Assign a new producer id with epoch 0, or the next epoch of a transactional id.

    An idempotent producer without transactions may send the id that it had, and gets a new one (KIP-360).
    """
    expected = _expected(request)
    if request.transactional_id:
        producer = await broker.transactions.init_producer_id(
            request.transactional_id,
            expected,
            timeout_ms=request.transaction_timeout_ms,
            coordinator_key=request.coordinator_key,
        )
        return pb.InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)
    producer_id = await broker.executors.administer(broker.producer_ids.next_id)
    return pb.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _expected(request: pb.InitProducerIdRequest) -> ProducerIdAndEpoch | None:
    """Return the caller's current producer id and epoch, if it has any."""
    has_id, has_epoch = request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_PRODUCER_EPOCH
    if has_id != has_epoch:
        raise InvalidRequestError(
            f"producer id {request.producer_id} and epoch {request.producer_epoch}: send both, or -1 for both"
        )
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch) if has_id else None
