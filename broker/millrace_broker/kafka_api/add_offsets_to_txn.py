"""Kafka's AddOffsetsToTxn call, which adds a group's offsets to a transaction."""

from __future__ import annotations

from typing import Final

from millrace.kafka_protocol.calls.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.add_offsets_to_txn import handle as add
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import coordinator_code

_WITH_FENCING: Final = 2
"""First version whose clients know the error PRODUCER_FENCED (KIP-588)."""


async def handle(message: AddOffsetsToTxnRequest, request: KafkaRequest) -> AddOffsetsToTxnResponse:
    """Add the partition of the group's offsets."""
    wanted = pb.AddOffsetsToTxnRequest(
        transactional_id=message.transactional_id,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        group_id=message.group_id,
    )
    await add(request.broker, wanted, request.context)
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=0)


def refuse(message: AddOffsetsToTxnRequest, version: int, error_code: int) -> AddOffsetsToTxnResponse:
    """Answer with the error."""
    code = coordinator_code(error_code, knows_fencing=version >= _WITH_FENCING)
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=code)
