"""Kafka's InitProducerId call.

The call assigns the id and epoch of an idempotent or transactional producer.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import InvalidRequestError
from millrace.kafka_protocol.calls.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.init_producer_id import handle as assign
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_for

_WITH_FENCING: Final = 4
"""First version whose clients know the error PRODUCER_FENCED (KIP-588)."""


async def handle(message: InitProducerIdRequest, request: KafkaRequest) -> InitProducerIdResponse:
    """Assign a producer id. An empty transactional id is refused; null means a producer without transactions."""
    if message.transactional_id == "":
        raise InvalidRequestError("the transactional id is empty: set transactional.id")
    wanted = pb.InitProducerIdRequest(
        transactional_id=message.transactional_id or "",
        transaction_timeout_ms=message.transaction_timeout_ms,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
    )
    answer = await assign(request.broker, wanted, request.context)
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=0, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
    )


def refuse(message: InitProducerIdRequest, version: int, error_code: int) -> InitProducerIdResponse:
    """Answer with the error."""
    code = code_for(error_code, knows_fencing=version >= _WITH_FENCING)
    return InitProducerIdResponse(throttle_time_ms=0, error_code=code, producer_id=-1, producer_epoch=-1)
