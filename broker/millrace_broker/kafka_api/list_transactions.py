"""Kafka's ListTransactions call (KIP-664).

The call lists the transactional ids that this broker coordinates.
"""

from __future__ import annotations

from millrace.kafka_protocol.calls.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.list_transactions import handle as find
from millrace_broker.groups import matches
from millrace_broker.kafka_api.call import KafkaRequest


async def handle(message: ListTransactionsRequest, request: KafkaRequest) -> ListTransactionsResponse:
    """List the transactions that match all filters. Raises ``InvalidRegularExpressionError``."""
    wanted = pb.ListTransactionsRequest(
        states=message.state_filters, producer_ids=message.producer_id_filters, duration_ms_min=message.duration_filter
    )
    answer = await find(request.broker, wanted, request.context)
    found, pattern = answer.transactions, message.transactional_id_pattern
    names = matches(pattern, [each.transactional_id for each in found]) if pattern else None
    return ListTransactionsResponse(
        throttle_time_ms=0,
        error_code=0,
        unknown_state_filters=tuple(answer.unknown_states),
        transaction_states=tuple(
            TransactionState(
                transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state
            )
            for each in found
            if names is None or each.transactional_id in names
        ),
    )


def refuse(message: ListTransactionsRequest, version: int, error_code: int) -> ListTransactionsResponse:
    """Answer with the error."""
    return ListTransactionsResponse(
        throttle_time_ms=0, error_code=error_code, unknown_state_filters=(), transaction_states=()
    )
