"""Kafka's DescribeTransactions call, which returns states of transactional ids (KIP-664)."""

from __future__ import annotations

from millrace.kafka_protocol.calls.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.describe_transactions import handle as describe
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of


async def handle(message: DescribeTransactionsRequest, request: KafkaRequest) -> DescribeTransactionsResponse:
    """Describe the transactional ids, each separately."""
    wanted = pb.DescribeTransactionsRequest(transactional_ids=message.transactional_ids)
    answer = await describe(request.broker, wanted, request.context)
    return DescribeTransactionsResponse(
        throttle_time_ms=0,
        transaction_states=tuple(
            _failed(each.transactional_id, code_of(each.error)) if each.HasField("error") else _state(each)
            for each in answer.transactions
        ),
    )


def _state(found: pb.DescribeTransactionsResponse.Transaction) -> TransactionState:
    return TransactionState(
        error_code=0,
        transactional_id=found.transactional_id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_time_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=tuple(TopicData(topic=each.name, partitions=tuple(each.partitions)) for each in found.topics),
    )


def _failed(transactional_id: str, error_code: int) -> TransactionState:
    return TransactionState(
        error_code=error_code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
        topics=(),
    )


def refuse(message: DescribeTransactionsRequest, version: int, error_code: int) -> DescribeTransactionsResponse:
    """Answer each transactional id with the error."""
    failed = tuple(_failed(each, error_code) for each in message.transactional_ids)
    return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=failed)
