"""Kafka's Produce call, which appends record batches.

The batches are stored as they were sent, or as columns of a typed topic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

from millrace.errors import (
    AuthorizationError,
    ConcurrentTransactionsError,
    CorruptBatchError,
    InvalidRecordError,
    MillraceError,
    NotEnoughReplicasError,
    UnknownTopicIdError,
    UnsupportedCompressionError,
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
from millrace.records import MAGIC, Compression, read_entries, read_header
from millrace.records.message_set import MAGIC_POSITION
from millrace_broker.api.common.access_rules import denied_items
from millrace_broker.api.produce import PartitionAppend, Producing, append
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.current_leaders import PRODUCE_CODES, CurrentLeaders
from millrace_broker.kafka_api.error_codes import NONE, code_for, code_of
from millrace_broker.kafka_api.topics import name_of

_WITH_TOPIC_IDS: Final = 13
_WITH_IMPLICIT_PARTITIONS: Final = 12
"""First version of producers that do not add partitions to a transaction themselves (KIP-890, part 2)."""
_WITH_ABORTABLE: Final = 11
"""First version that has the error TRANSACTION_ABORTABLE."""
_WITH_ZSTD: Final = 7
"""First version whose batches may be compressed by zstd (KIP-110)."""
_WITH_CURRENT_LEADER: Final = 10
"""First version whose answers name the leader of a partition that has moved (KIP-951)."""
_NO_LEADER: Final = PartitionProduceResponse.of_defaults().current_leader
"""The object that is the field's default: the encoder compares it by identity, and another one by its fields."""
_NO_ANSWER: Final = 0
"""``acks`` of a producer that waits for no answer."""


async def handle(message: ProduceRequest, request: KafkaRequest) -> ProduceResponse | None:
    """Append each partition's batches.

    With ``acks=0`` there is no answer. The first error of a partition is then raised, which closes the connection.
    """
    producing = Producing(
        acks=message.acks,
        timeout_ms=max(0, message.timeout_ms),
        transactional_id=message.transactional_id or "",
        adds_partitions=request.version >= _WITH_IMPLICIT_PARTITIONS,
        raises_epoch=request.version >= _WITH_IMPLICIT_PARTITIONS,
    )
    denied = _denied(message, request)
    has_id = request.version >= _WITH_TOPIC_IDS
    topics: list[list[PartitionAppend] | MillraceError] = []  # appends, or an error
    for topic in message.topic_data:
        try:
            name = name_of(request.broker.catalog, topic.name, topic.topic_id, has_id=has_id)
        except MillraceError as error:
            topics.append(error)
            continue
        if name in denied:
            topics.append(denied[name])
        else:
            topics.append([PartitionAppend(name, each.index, each.records or b"") for each in topic.partition_data])
    appends = [each for topic in topics if isinstance(topic, list) for each in topic]
    for each in appends:
        with contextlib.suppress(CorruptBatchError):  # the append refuses the batch
            each.error = _form_error(each, request.version)
    await append(request.broker, producing, [each for each in appends if each.error is None])
    if message.acks == _NO_ANSWER:
        _raise_first(topics)
        return None
    leaders = CurrentLeaders(request, are_named=request.version >= _WITH_CURRENT_LEADER)
    responses = tuple(
        [
            _appended(topic, done, request.version, leaders)
            if isinstance(done, list)
            else _failed(topic, code_of(done))
            for topic, done in zip(message.topic_data, topics, strict=True)
        ]
    )
    return ProduceResponse(
        responses=responses,
        node_endpoints=tuple(NodeEndpoint(**each._asdict()) for each in leaders.endpoints()),
    )


def _form_error(append: PartitionAppend, version: int) -> MillraceError | None:
    """Return the error of records that are not exactly one batch of the present format.

    Source: Kafka's ``ProduceRequest.validateRecords``. Raises ``CorruptBatchError``.
    """
    data, where = append.records, f"the records for {append.topic}-{append.partition}"
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] < MAGIC:
        return InvalidRecordError(
            f"{where} have format {data[MAGIC_POSITION]}: upgrade the client to one that sends format {MAGIC}"
        )
    header = read_header(data)
    if version < _WITH_ZSTD and header.compression == Compression.ZSTD:
        return UnsupportedCompressionError(
            f"{where} are compressed by zstd, which needs version {_WITH_ZSTD} of Produce: upgrade the client, or set "
            "another compression.type"
        )
    if len(data) > header.size_bytes and any(read_entries(data[header.size_bytes :])):
        return InvalidRecordError(f"{where} are several batches: send one for each partition")
    return None


def _raise_first(topics: Sequence[list[PartitionAppend] | MillraceError]) -> None:
    for each in topics:
        if isinstance(each, MillraceError):
            raise each
        for part in each:
            if part.error is not None:
                raise part.error


def _denied(message: ProduceRequest, request: KafkaRequest) -> Mapping[str, AuthorizationError]:
    """Return the errors of topics to which the client may not write. Raises that of the transactional id."""
    if request.broker.authorizer is None:
        return {}
    has_id = request.version >= _WITH_TOPIC_IDS
    asked = pb.ProduceRequest(transactional_id=message.transactional_id or "")
    for topic in message.topic_data:
        with contextlib.suppress(UnknownTopicIdError):  # the topic's own error
            name = name_of(request.broker.catalog, topic.name, topic.topic_id, has_id=has_id)
            asked.topics.add(name=name)
    return denied_items("Produce", request.broker, asked, request.context)


def _appended(
    topic: TopicProduceData, appends: Sequence[PartitionAppend], version: int, leaders: CurrentLeaders
) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=tuple(
            [
                PartitionProduceResponse(
                    index=each.partition,
                    error_code=NONE if each.error is None else _code(each.error, version),
                    base_offset=each.base_offset,
                    log_append_time_ms=each.log_append_time_ms,
                    log_start_offset=each.log_start_offset,
                    record_errors=tuple(
                        [
                            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
                            for index, text in each.record_errors.items()
                        ]
                    ),
                    error_message=None if each.error is None else each.error.message or None,
                    current_leader=LeaderIdAndEpoch(**leaders.find(each.topic, each.partition)._asdict())
                    if each.error is not None and each.error.code in PRODUCE_CODES
                    else _NO_LEADER,
                )
                for each in appends
            ]
        ),
    )


def _code(error: MillraceError, version: int) -> int:
    """Return the error's code as the version has it. Older producers retry, or abort, on other codes."""
    if version < _WITH_IMPLICIT_PARTITIONS and isinstance(error, ConcurrentTransactionsError):
        return NotEnoughReplicasError.code
    return code_for(code_of(error), knows_abortable=version >= _WITH_ABORTABLE)


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
