"""InitProducerId: a number for an idempotent producer."""

from __future__ import annotations

from millrace.errors import InvalidRequestError, UnsupportedVersionError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.call import Call
from millrace_broker.broker import Broker


async def handle(broker: Broker, request: pb.InitProducerIdRequest, call: Call) -> pb.InitProducerIdResponse:
    """Give a new producer id with epoch 0."""
    if request.transactional_id:
        raise UnsupportedVersionError("transactions are not supported by this broker: leave transactional.id unset")
    if request.producer_id > 0 or request.producer_epoch > 0:
        raise InvalidRequestError("an idempotent producer without transactions takes a new id: send producer_id -1")
    producer_id = await broker.administer(broker.producer_ids.next_id)
    return pb.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
