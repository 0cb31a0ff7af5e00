"""Requests of followers and their answers, to and from protobuf messages."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import pyarrow as pa

from millrace.config.broker import BrokerConfig
from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import read_fetch_response, read_session_id
from millrace.protocol.item_errors import error_in
from millrace_broker.purgatory import PartitionKey
from millrace_broker.replication.core import EpochEnd, FetchFrom, SessionRequest
from millrace_broker.replication.core.follower import AskEpochEnd, AskLogBounds
from millrace_broker.replication.runtime.fetch_sessions import FollowerFetch

T = TypeVar("T")
TopicT = TypeVar("TopicT", bound=Hashable)

_LATEST, _EARLIEST = -1, -2


class ReplicaFetch(NamedTuple):
    """A partition's part of a fetch request. The topic id tells a topic from an earlier one of the same name."""

    topic_id: bytes
    fetch: FetchFrom


class ReplicaRecords(NamedTuple):
    """A partition's part of a fetch answer.

    The part has an error, a divergence, or records with the leader's offsets.
    """

    key: PartitionKey
    error: MillraceError | None
    diverging: EpochEnd | None
    records: pa.Buffer
    high_watermark: int
    log_start_offset: int


def fetch_request(
    request: SessionRequest[PartitionKey, ReplicaFetch], config: BrokerConfig, broker_epoch: int
) -> pb.FetchRequest:
    """Build the fetch request of a follower's broker."""
    message = pb.FetchRequest(
        replica_id=config.broker_id,
        max_wait_ms=config.replica_fetch_wait_max_ms,
        min_bytes=config.replica_fetch_min_bytes,
        max_bytes=config.replica_fetch_response_max_bytes,
        session_id=request.session_id,
        session_epoch=request.epoch,
        broker_epoch=broker_epoch,
    )
    named = ((((name, each.topic_id), number), each.fetch) for (name, number), each in request.fetches.items())
    for (name, topic_id), fetches in _by_topic(named):
        topic = message.topics.add(name=name, topic_id=topic_id)
        for number, fetch in fetches:
            partition = topic.partitions.add(
                partition=number,
                fetch_offset=fetch.offset,
                partition_max_bytes=config.replica_fetch_max_bytes,
                current_leader_epoch=fetch.leader_epoch,
                log_start_offset=fetch.log_start_offset,
            )
            if fetch.last_epoch is not None:
                partition.last_fetched_epoch = fetch.last_epoch
    for name, numbers in _by_topic((key, None) for key in request.forgotten):
        message.forgotten.add(name=name, partitions=[number for number, _ in numbers])
    return message


def changed_fetches(request: pb.FetchRequest) -> dict[PartitionKey, FollowerFetch]:
    """Return the fetches that a follower's request names."""
    return {
        (topic.name, each.partition): FollowerFetch(
            topic_id=topic.topic_id,
            offset=each.fetch_offset,
            leader_epoch=each.current_leader_epoch,
            last_epoch=each.last_fetched_epoch if each.HasField("last_fetched_epoch") else None,
            log_start_offset=each.log_start_offset,
            max_bytes=each.partition_max_bytes,
        )
        for topic in request.topics
        for each in topic.partitions
    }


def forgotten_fetches(request: pb.FetchRequest) -> list[PartitionKey]:
    """Return the partitions that the follower no longer fetches."""
    return [(topic.name, number) for topic in request.forgotten for number in topic.partitions]


def read_answer(data: bytes | memoryview) -> tuple[int, list[ReplicaRecords]]:
    """Read a leader's answer: its session id and the changed partitions. Raises ``InvalidRequestError``."""
    return read_session_id(data), [
        ReplicaRecords(
            key=(topic, result.partition),
            error=error_in(result.error),
            diverging=EpochEnd(epoch=result.diverging_epoch.leader_epoch, end_offset=result.diverging_epoch.end_offset)
            if result.HasField("diverging_epoch")
            else None,
            records=records,
            high_watermark=result.high_watermark,
            log_start_offset=result.log_start_offset,
        )
        for topic, result, records in read_fetch_response(data)
    ]


def epochs_request(questions: Mapping[PartitionKey, AskEpochEnd], broker_id: int) -> pb.OffsetForLeaderEpochRequest:
    """Build a request for the ends of epochs."""
    message = pb.OffsetForLeaderEpochRequest(replica_id=broker_id)
    for name, asked in _by_topic(questions.items()):
        topic = message.topics.add(name=name)
        for number, question in asked:
            topic.partitions.add(
                partition=number, current_leader_epoch=question.leader_epoch, leader_epoch=question.epoch
            )
    return message


def read_epochs(
    response: pb.OffsetForLeaderEpochResponse,
) -> Iterator[tuple[PartitionKey, EpochEnd | MillraceError | None]]:
    """Read the ends of epochs; None where the leader knows no epoch that old or that new."""
    for topic in response.topics:
        for each in topic.partitions:
            key = (topic.name, each.partition)
            error = error_in(each.error)
            if error is not None:
                yield key, error
            elif each.end.leader_epoch < 0:
                yield key, None
            else:
                yield key, EpochEnd(epoch=each.end.leader_epoch, end_offset=each.end.end_offset)


def bounds_request(questions: Mapping[PartitionKey, AskLogBounds], broker_id: int) -> pb.ListOffsetsRequest:
    """Build a request for the start and end offsets of logs."""
    message = pb.ListOffsetsRequest(replica_id=broker_id)
    for name, asked in _by_topic(questions.items()):
        topic = message.topics.add(name=name)
        for number, question in asked:
            for timestamp in (_EARLIEST, _LATEST):
                topic.partitions.add(partition=number, timestamp=timestamp, current_leader_epoch=question.leader_epoch)
    return message


def read_bounds(
    response: pb.ListOffsetsResponse,
) -> Iterator[tuple[PartitionKey, tuple[int, int] | MillraceError]]:
    """Read the start and end offsets of logs."""
    for topic in response.topics:
        answers = iter(topic.partitions)
        for start, end in zip(answers, answers, strict=True):
            key = (topic.name, start.partition)
            yield key, error_in(start.error) or error_in(end.error) or (start.offset, end.offset)


def _by_topic(items: Iterable[tuple[tuple[TopicT, int], T]]) -> Iterable[tuple[TopicT, list[tuple[int, T]]]]:
    topics: dict[TopicT, list[tuple[int, T]]] = {}
    for (name, number), item in items:
        topics.setdefault(name, []).append((number, item))
    return topics.items()
