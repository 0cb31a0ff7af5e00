"""Kafka's AddPartitionsToTxn call, which adds partitions to transactions.

Before version 4 a request has one transaction.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.add_partitions_to_txn import handle as add
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, coordinator_code
from millrace_broker.runtime.turns import Turns

_WITH_FENCING: Final = 2
"""First version whose clients know the error PRODUCER_FENCED (KIP-588)."""
_WITH_TRANSACTIONS: Final = 4
"""First version, which brokers alone send (KIP-890)."""


async def handle(message: AddPartitionsToTxnRequest, request: KafkaRequest) -> AddPartitionsToTxnResponse:
    """Add the partitions, each transaction separately."""
    results, turns = [], Turns()
    for each in _transactions(message, request.version):
        await turns.next()
        results.append(await _added(each, request))
    return _response(tuple(results), request.version)


def _transactions(message: AddPartitionsToTxnRequest, version: int) -> tuple[AddPartitionsToTxnTransaction, ...]:
    if version >= _WITH_TRANSACTIONS:
        return message.transactions
    return (
        AddPartitionsToTxnTransaction(
            transactional_id=message.v3_and_below_transactional_id,
            producer_id=message.v3_and_below_producer_id,
            producer_epoch=message.v3_and_below_producer_epoch,
            topics=message.v3_and_below_topics,
        ),
    )


async def _added(wanted: AddPartitionsToTxnTransaction, request: KafkaRequest) -> AddPartitionsToTxnResult:
    asked = pb.AddPartitionsToTxnRequest(
        transactional_id=wanted.transactional_id,
        producer_id=wanted.producer_id,
        producer_epoch=wanted.producer_epoch,
        topics=[pb.TopicPartitions(name=topic.name, partitions=topic.partitions) for topic in wanted.topics],
        verify_only=wanted.verify_only,
        by_broker=request.version >= _WITH_TRANSACTIONS,
    )
    try:
        answer = await add(request.broker, asked, request.context)
    except MillraceError as error:
        return _failed(wanted, coordinator_code(code_of(error), knows_fencing=request.version >= _WITH_FENCING))
    return AddPartitionsToTxnResult(
        transactional_id=wanted.transactional_id,
        topic_results=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=each.partition, partition_error_code=code_of(each.error)
                    )
                    for each in topic.partitions
                ),
            )
            for topic in answer.topics
        ),
    )


def _failed(wanted: AddPartitionsToTxnTransaction, error_code: int) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(
        transactional_id=wanted.transactional_id,
        topic_results=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=error_code)
                    for number in topic.partitions
                ),
            )
            for topic in wanted.topics
        ),
    )


def _response(results: tuple[AddPartitionsToTxnResult, ...], version: int) -> AddPartitionsToTxnResponse:
    if version >= _WITH_TRANSACTIONS:
        return AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_transaction=results)
    return AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=results[0].topic_results)


def refuse(message: AddPartitionsToTxnRequest, version: int, error_code: int) -> AddPartitionsToTxnResponse:
    """Answer each partition with the error."""
    return _response(tuple(_failed(each, error_code) for each in _transactions(message, version)), version)
