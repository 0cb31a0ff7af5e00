"""Handler of ListTransactions for the transactional ids that this broker coordinates."""

from __future__ import annotations

from millrace.coordinator_records import TransactionState
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker

_STATES = {state.kafka_name for state in TransactionState}


@authorized("ListTransactions")
async def handle(
    broker: Broker, request: pb.ListTransactionsRequest, context: RequestContext
) -> pb.ListTransactionsResponse:
    """List the transactions that pass all filters. State names that do not exist are reported."""
    now_ms = broker.clock.now_ms()
    response = pb.ListTransactionsResponse(unknown_states=[name for name in request.states if name not in _STATES])
    for transaction in broker.transactions.transactions():
        state = transaction.state.kafka_name
        if request.states and state not in request.states:
            continue
        if request.producer_ids and transaction.producer_id not in request.producer_ids:
            continue
        # As in Kafka, an id that has had no transaction passes, and an ended transaction counts by its start.
        if request.duration_ms_min > 0 and now_ms - transaction.started_ms <= request.duration_ms_min:
            continue
        response.transactions.add(
            transactional_id=transaction.transactional_id, producer_id=transaction.producer_id, state=state
        )
    return response
