"""Kafka's Fetch call, which returns batches of several partitions as rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from millrace.config.topic import CompressionType
from millrace.errors import MillraceError, ThrottledError, UnsupportedCompressionError
from millrace.kafka_protocol.calls.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import FetchAnswer, PartitionAnswer, TopicAnswer
from millrace.records import end_of_batches, read_header
from millrace_broker.api.common.errors import known_error
from millrace_broker.api.fetch import handle as read
from millrace_broker.api.fetch import response_bytes_max
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.current_leaders import FETCH_CODES, UNKNOWN, CurrentLeaders
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.kafka_api.fetch_sessions import FetchedTopic, FetchPlan
from millrace_broker.kafka_api.fetched_rows import ResponseRows
from millrace_broker.kafka_api.list_offsets import isolation_level
from millrace_broker.kafka_api.next_fetches import NextFetch, prepare
from millrace_broker.kafka_api.row_batches import ReadBatches, WantedOffsets
from millrace_broker.kafka_api.topics import name_of
from millrace_broker.quotas import pause
from millrace_broker.replication.core.fetch_session import NO_SESSION
from millrace_broker.replication.runtime import LeaderAndEpoch
from millrace_broker.runtime.turns import ITEMS, Turns

_CONSUMER: Final = -1
_PAUSE_MS_MAX: Final = 500
"""Longest wait before an answer without records of partitions that could not be read, because clients fetch again."""
_NO_DIVERGENCE: Final = PartitionData.of_defaults().diverging_epoch
"""The object that is the field's default: the encoder compares it by identity, and another one by its fields."""
_WITH_ERROR: Final = 7
_WITH_FOLLOWERS: Final = 11
"""First version that followers answer too, also without a rack (KIP-392)."""
_WITH_TOPIC_IDS: Final = 13
_WITH_CURRENT_LEADER: Final = 16
"""First version whose answers name the leader of a partition that has moved (KIP-951)."""
_WITH_ZSTD: Final = 10
"""First version whose clients can read batches that are compressed by zstd (KIP-110)."""


async def handle(message: FetchRequest, request: KafkaRequest) -> FetchResponse:
    """Read the available batches. Batches of columns become rows.

    A request that reads no partition, such as the last one of a session, does not wait. As in Kafka, an unknown or
    denied topic does not end the wait for the others. Otherwise its client would fetch again and again.
    """
    has_id = request.version >= _WITH_TOPIC_IDS
    plan = request.state.fetch_sessions.plan(message, request.broker.clock.monotonic(), has_topic_ids=has_id)
    wanted = pb.FetchRequest(
        replica_id=_CONSUMER,
        min_bytes=message.min_bytes,
        max_bytes=message.max_bytes,
        isolation_level=isolation_level(message.isolation_level),
        rack_id=message.rack_id,
        may_follow=request.version >= _WITH_FOLLOWERS,
    )
    topics = _by_topic(plan)
    unknown: dict[FetchedTopic, int] = {}
    for topic, partitions in topics.items():
        try:
            name = name_of(request.broker.catalog, topic.name, topic.topic_id, has_id=has_id)
        except MillraceError as error:
            unknown[topic] = code_of(error)
            continue
        wanted.topics.add(name=name, partitions=[_partition(each) for each in partitions])
    wanted.max_wait_ms = message.max_wait_ms if wanted.topics else 0
    answer = await read(request.broker, wanted, request.context)
    if _is_throttled(answer):
        await pause(min(wanted.max_wait_ms, _PAUSE_MS_MAX) / 1000)
    answers = dict(zip((topic for topic in topics if topic not in unknown), answer.topics, strict=True))
    responses = []
    answering = _Answering(
        request,
        ResponseRows(request, response_bytes_max(request.broker, message.max_bytes, request.context)),
        CurrentLeaders(request, are_named=request.version >= _WITH_CURRENT_LEADER),
        bool(message.isolation_level),
        Turns(),
        [],
    )
    reads = (each for topic in answers for each in _reads(answering, answers[topic], topics[topic]))
    await answering.rows.convert(list(islice(reads, ITEMS)))
    for topic, partitions in topics.items():
        if topic in unknown:
            found = tuple(_refused(each.partition, unknown[topic]) for each in partitions)
        else:
            found = await _answered(answering, answers[topic], partitions)
        if plan.session is not None:
            news = [(each, plan.session.has_news((topic, each.partition_index), each)) for each in found]
            found = tuple(each for each, is_new in news if is_new or not plan.is_incremental)
        if found:
            responses.append(FetchableTopicResponse(topic=topic.name, topic_id=topic.topic_id, partitions=found))
    sizes = (len(each.records or b"") for response in responses for each in response.partitions)
    request.context.response_lease.settle(sum(sizes))  # the batches that were read are no longer held
    prepare(request, answering.rows, answering.next_fetches)
    session_id = NO_SESSION if plan.session is None else plan.session.session_id
    return FetchResponse(
        throttle_time_ms=0,
        session_id=session_id,
        responses=tuple(responses),
        node_endpoints=tuple(NodeEndpoint(**each._asdict()) for each in answering.leaders.endpoints()),
    )


def _by_topic(plan: FetchPlan) -> dict[FetchedTopic, list[FetchPartition]]:
    topics: dict[FetchedTopic, list[FetchPartition]] = {}
    for (topic, _), wanted in plan.partitions.items():
        topics.setdefault(topic, []).append(wanted)
    return topics


def _partition(wanted: FetchPartition) -> pb.FetchRequest.PartitionFetch:
    asked = pb.FetchRequest.PartitionFetch(
        partition=wanted.partition,
        fetch_offset=wanted.fetch_offset,
        partition_max_bytes=wanted.partition_max_bytes,
        current_leader_epoch=wanted.current_leader_epoch,
    )
    if wanted.last_fetched_epoch >= 0:
        asked.last_fetched_epoch = wanted.last_fetched_epoch
    return asked


def _is_throttled(answer: FetchAnswer) -> bool:
    """Return whether there are no records, because too many reads wait for the remote store."""
    partitions = [each for topic in answer.topics for each in topic.partitions]
    return not any(each.records for each in partitions) and any(
        each.result.error.code == ThrottledError.code for each in partitions
    )


class _Answering(NamedTuple):
    """An answer that is made."""

    request: KafkaRequest
    rows: ResponseRows
    leaders: CurrentLeaders
    is_committed: bool
    turns: Turns
    next_fetches: list[NextFetch]


def _reads(answering: _Answering, answer: TopicAnswer, wanted: Sequence[FetchPartition]) -> Iterator[ReadBatches]:
    """Yield the columnar batches of a topic that were read.

    Errors, such as that of a topic that was deleted meanwhile, are left to ``_data``.
    """
    with contextlib.suppress(MillraceError):
        for asked, each in zip(wanted, answer.partitions, strict=True):
            if each.records and read_header(each.records).is_columnar:
                info = answering.request.broker.partitions.topic(answer.name, answer.topic_id)
                offsets = WantedOffsets(asked.fetch_offset)
                yield answering.rows.read(info, each.result.partition, each.records, offsets)


async def _answered(
    answering: _Answering, answer: TopicAnswer, wanted: Sequence[FetchPartition]
) -> tuple[PartitionData, ...]:
    """Return the partitions of a topic, in their order, because each takes room from those after it."""
    found = []
    for asked, each in zip(wanted, answer.partitions, strict=True):
        await answering.turns.next()
        found.append(await _data(answering, answer, each, asked))
    return tuple(found)


async def _data(
    answering: _Answering, topic: TopicAnswer, answer: PartitionAnswer, wanted: FetchPartition
) -> PartitionData:
    """Return a partition. One that could not be read now has no records and no error, because Java's clients fail at
    ``THROTTLING_QUOTA_EXCEEDED``.
    """
    request, result = answering.request, answer.result
    if result.HasField("error") and result.error.code != ThrottledError.code:
        is_elsewhere = result.error.code in FETCH_CODES
        leader = answering.leaders.find(topic.name, result.partition) if is_elsewhere else UNKNOWN
        return _refused(result.partition, code_of(result.error), leader)
    try:
        _check_compression(request, topic)
        info = request.broker.partitions.topic(topic.name, topic.topic_id)
        records = await answering.rows.of(
            info,
            result.partition,
            answer.records,
            wanted=WantedOffsets(wanted.fetch_offset),
            partition_max_bytes=wanted.partition_max_bytes,
        )
    except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
        return _refused(result.partition, code_of(known_error(error)))
    next_offset = end_of_batches(records, result.high_watermark)
    if next_offset < result.high_watermark and not answering.is_committed:
        answering.next_fetches.append(
            NextFetch(info, result.partition, next_offset, result.high_watermark, wanted.partition_max_bytes)
        )
    return PartitionData(
        partition_index=result.partition,
        error_code=0,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        diverging_epoch=EpochEndOffset(
            epoch=result.diverging_epoch.leader_epoch, end_offset=result.diverging_epoch.end_offset
        )
        if result.HasField("diverging_epoch")
        else _NO_DIVERGENCE,
        aborted_transactions=tuple(
            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in result.aborted_transactions
        )
        if answering.is_committed
        else None,
        preferred_read_replica=result.preferred_read_replica if result.HasField("preferred_read_replica") else -1,
        records=records,
    )


def _check_compression(request: KafkaRequest, topic: TopicAnswer) -> None:
    """Raise ``UnsupportedCompressionError`` for an old client of a topic with ``compression.type=zstd``."""
    if request.version >= _WITH_ZSTD:
        return
    if request.broker.partitions.topic(topic.name, topic.topic_id).config.compression_type is CompressionType.ZSTD:
        raise UnsupportedCompressionError(
            f"topic {topic.name} is compressed by zstd, which needs version {_WITH_ZSTD} of Fetch: upgrade the client"
        )


def _refused(partition: int, error_code: int, leader: LeaderAndEpoch = UNKNOWN) -> PartitionData:
    return PartitionData(
        partition_index=partition,
        error_code=error_code,
        high_watermark=-1,
        aborted_transactions=None,
        records=b"",
        current_leader=LeaderIdAndEpoch(**leader._asdict()),
    )


def _failed(topic: FetchTopic, error_code: int) -> FetchableTopicResponse:
    return FetchableTopicResponse(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=tuple(_refused(each.partition, error_code) for each in topic.partitions),
    )


def refuse(message: FetchRequest, version: int, error_code: int) -> FetchResponse:
    """Answer with the error; before version 7 each partition."""
    if version >= _WITH_ERROR:
        return FetchResponse(throttle_time_ms=0, error_code=error_code, responses=())
    return FetchResponse(throttle_time_ms=0, responses=tuple(_failed(topic, error_code) for topic in message.topics))
