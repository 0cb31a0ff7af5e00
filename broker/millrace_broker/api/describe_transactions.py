"""Handler of DescribeTransactions, which describes transactional ids."""

from __future__ import annotations

from millrace.errors import InvalidRequestError
from millrace.partitions import numbers_by_topic
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.runtime.turns import Turns
from millrace_broker.transactions import TransactionCoordinator

_NONE = -1


@authorized("DescribeTransactions")
async def handle(
    broker: Broker, request: pb.DescribeTransactionsRequest, context: RequestContext
) -> pb.DescribeTransactionsResponse:
    """Describe each transactional id. An unknown id gets an error."""
    response, turns = pb.DescribeTransactionsResponse(), Turns()
    for transactional_id in request.transactional_ids:
        await turns.next()
        described = response.transactions.add(
            transactional_id=transactional_id, coordinator_id=broker.config.broker_id, start_time_ms=_NONE
        )
        try:
            _describe(broker.transactions, transactional_id, described)
        except Exception as error:  # noqa: BLE001 - the id's error; unexpected errors are logged
            described.error.CopyFrom(error_message(error))
    return response


def _describe(
    coordinator: TransactionCoordinator, transactional_id: str, described: pb.DescribeTransactionsResponse.Transaction
) -> None:
    if not transactional_id:
        raise InvalidRequestError("the transactional id is empty: name one")
    transaction = coordinator.describe(transactional_id)
    described.state = transaction.state.kafka_name
    described.timeout_ms = transaction.timeout_ms
    described.start_time_ms = transaction.started_ms if transaction.is_open else _NONE
    described.producer_id, described.producer_epoch = transaction.producer
    for topic, numbers in numbers_by_topic(sorted(transaction.partitions)).items():
        described.topics.add(name=topic, partitions=numbers)
