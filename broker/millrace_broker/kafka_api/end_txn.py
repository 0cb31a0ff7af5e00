"""Kafka's EndTxn call, which commits or aborts a transaction."""

from __future__ import annotations

from typing import Final

from millrace.kafka_protocol.calls.end_txn import EndTxnRequest, EndTxnResponse
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.end_txn import handle as end
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_for

_WITH_FENCING: Final = 2
"""First version whose clients know the error PRODUCER_FENCED (KIP-588)."""
_WITH_NEXT_EPOCH: Final = 5
"""First version of producers that take another epoch for each transaction (KIP-890)."""


async def handle(message: EndTxnRequest, request: KafkaRequest) -> EndTxnResponse:
    """Decide the transaction. The markers are written afterwards."""
    wanted = pb.EndTxnRequest(
        transactional_id=message.transactional_id,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        committed=message.committed,
        keeps_epoch=request.version < _WITH_NEXT_EPOCH,
    )
    answer = await end(request.broker, wanted, request.context)
    if request.version < _WITH_NEXT_EPOCH:
        return EndTxnResponse(throttle_time_ms=0, error_code=0)
    return EndTxnResponse(
        throttle_time_ms=0, error_code=0, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
    )


def refuse(message: EndTxnRequest, version: int, error_code: int) -> EndTxnResponse:
    """Answer with the error."""
    code = code_for(error_code, knows_fencing=version >= _WITH_FENCING)
    return EndTxnResponse(throttle_time_ms=0, error_code=code)
