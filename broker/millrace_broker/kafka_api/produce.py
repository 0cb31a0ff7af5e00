"""Produce: append record batches, as they were sent, or as columns of a typed topic."""

from __future__ import annotations

from typing import Final

from millrace.errors import (
    AbortableTransactionError,
    ConcurrentTransactionsError,
    InvalidTxnStateError,
    MillraceError,
    NotEnoughReplicasError,
)
from millrace.kafka_protocol.calls.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.produce import handle as append
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.current_leaders import PRODUCE_CODES, CurrentLeaders
from millrace_broker.kafka_api.error_codes import code_of, text_of
from millrace_broker.kafka_api.topics import name_of

_WITH_IMPLICIT_PARTITIONS: Final = 12
"""First version of producers that do not add partitions to a transaction themselves (KIP-890, part 2)."""
_WITH_ABORTABLE: Final = 11
"""First version that has the error TRANSACTION_ABORTABLE."""
_WITH_CURRENT_LEADER: Final = 10
"""First version whose answers name the leader of a partition that has moved (KIP-951)."""
_NO_LEADER: Final = LeaderIdAndEpoch()
_NO_ANSWER: Final = 0
"""``acks`` of a producer that waits for no answer."""


async def handle(message: ProduceRequest, request: KafkaRequest) -> ProduceResponse | None:
    """Append each partition's batches. With ``acks=0`` there is no answer."""
    wanted = pb.ProduceRequest(
        acks=message.acks,
        timeout_ms=max(0, message.timeout_ms),
        transactional_id=message.transactional_id or "",
        adds_partitions=request.version >= _WITH_IMPLICIT_PARTITIONS,
    )
    unknown: dict[int, int] = {}
    for place, topic in enumerate(message.topic_data):
        try:
            data = wanted.topics.add(name=name_of(request.broker, topic.name, topic.topic_id))
        except MillraceError as error:
            unknown[place] = code_of(error)
            continue
        for each in topic.partition_data:
            data.partitions.add(partition=each.index, records=bytes(each.records or b""))
    answer = await append(request.broker, wanted, request.context)
    if message.acks == _NO_ANSWER:
        return None
    results = iter(answer.topics)
    leaders = CurrentLeaders(request, are_named=request.version >= _WITH_CURRENT_LEADER)
    responses = tuple(
        _failed(topic, unknown[place])
        if place in unknown
        else _appended(topic, next(results), request.version, leaders)
        for place, topic in enumerate(message.topic_data)
    )
    return ProduceResponse(
        responses=responses,
        node_endpoints=tuple(NodeEndpoint(**each._asdict()) for each in leaders.endpoints()),
    )


def _appended(
    topic: TopicProduceData, result: pb.ProduceResponse.TopicResult, version: int, leaders: CurrentLeaders
) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=tuple(
            PartitionProduceResponse(
                index=each.partition,
                error_code=_code(each.error, version),
                base_offset=each.base_offset,
                log_append_time_ms=each.log_append_time_ms,
                log_start_offset=each.log_start_offset,
                record_errors=tuple(
                    BatchIndexAndErrorMessage(batch_index=bad.batch_index, batch_index_error_message=bad.message)
                    for bad in each.record_errors
                ),
                error_message=text_of(each.error),
                current_leader=LeaderIdAndEpoch(**leaders.find(result.name, each.partition)._asdict())
                if each.error.code in PRODUCE_CODES
                else _NO_LEADER,
            )
            for each in result.partitions
        ),
    )


def _code(error: pb.Error, version: int) -> int:
    """Return the error's code as the version has it. Older producers retry, or abort, on other codes."""
    if version < _WITH_ABORTABLE and error.code == AbortableTransactionError.code:
        return InvalidTxnStateError.code
    if version < _WITH_IMPLICIT_PARTITIONS and error.code == ConcurrentTransactionsError.code:
        return NotEnoughReplicasError.code
    return code_of(error)


def _failed(topic: TopicProduceData, error_code: int) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=tuple(
            PartitionProduceResponse(index=each.index, error_code=error_code, base_offset=-1)
            for each in topic.partition_data
        ),
    )


def refuse(message: ProduceRequest, version: int, error_code: int) -> ProduceResponse | None:
    """Answer each partition with the error, unless the producer waits for no answer."""
    if message.acks == _NO_ANSWER:
        return None
    return ProduceResponse(responses=tuple(_failed(topic, error_code) for topic in message.topic_data))
