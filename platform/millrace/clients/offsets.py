"""Offset lookup by time (ListOffsets), for admin clients and consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from millrace.clients.connections import Connections
from millrace.clients.leaders import LeaderCall, ask_leaders
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import OffsetAndTimestamp, TopicPartition
from millrace.config.client import Isolation
from millrace.errors import MillraceError, UsageError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import error_in

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WORDS: Final = {
    "latest": -1,
    "end": -1,
    "earliest": -2,
    "beginning": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
"""Special times of ListOffsets by the names of ``kafka-get-offsets``, and by synonyms."""


def wire_time(when: str | int | datetime) -> int:
    """Return a time as ListOffsets takes it: ms since the epoch, or a negative special value.

    A word or its number stands for a special value. A ``datetime`` within a millisecond means the next one, because
    records of the millisecond itself are earlier. One before 1970 means 0. Raises ``UsageError``.
    """
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise UsageError(f"time {when} has no time zone: add one, for example by when.replace(tzinfo=UTC)")
        return max(-((_EPOCH - when) // timedelta(milliseconds=1)), 0)
    if isinstance(when, str):
        if when not in _WORDS:
            raise UsageError(f"offset {when!r}: expected earliest, latest, max-timestamp, or a time in ms")
        return _WORDS[when]
    if when < 0 and when not in _WORDS.values():
        raise UsageError(f"time {when} ms is negative: give a time since 1970, or a word such as latest")
    return when


def isolation_number(level: str) -> pb.IsolationLevel.ValueType:
    """Return the protocol's number of an isolation level; raises ``UsageError`` for an unknown name."""
    try:
        return pb.READ_COMMITTED if Isolation(level) is Isolation.READ_COMMITTED else pb.READ_UNCOMMITTED
    except ValueError:
        raise UsageError(f"isolation level {level!r}: expected read_uncommitted or read_committed") from None


def list_offsets(
    connections: Connections,
    metadata: MetadataCache,
    wanted: Mapping[TopicPartition, str | int | datetime],
    *,
    isolation_level: str = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Ask the leader of each partition for the offset at a time; raises the first partition's error."""
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    for partition, answer in ask_offsets(connections, metadata, wanted, isolation_level=isolation_level).items():
        if isinstance(answer, MillraceError):
            raise answer
        found[partition] = answer
    return found


def ask_offsets(
    connections: Connections,
    metadata: MetadataCache,
    wanted: Mapping[TopicPartition, str | int | datetime],
    *,
    isolation_level: str = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, OffsetAndTimestamp | MillraceError]:
    """Ask the leader of each partition for the offset at a time, and return each partition's offset or error."""
    times = {TopicPartition(*partition): wire_time(when) for partition, when in wanted.items()}
    return ask_leaders(connections, metadata, times, offsets_call(times, isolation_level))


def offsets_call(
    times: Mapping[TopicPartition, int], isolation_level: str
) -> LeaderCall[pb.ListOffsetsRequest, pb.ListOffsetsResponse, OffsetAndTimestamp]:
    """Return the call for the offsets at times as ListOffsets takes them."""
    level = isolation_number(isolation_level)

    def request(partitions: Sequence[TopicPartition]) -> pb.ListOffsetsRequest:
        topics: dict[str, pb.ListOffsetsRequest.TopicTimes] = {}
        for partition in partitions:
            topic = topics.setdefault(partition.topic, pb.ListOffsetsRequest.TopicTimes(name=partition.topic))
            topic.partitions.add(partition=partition.partition, timestamp=times[partition])
        return pb.ListOffsetsRequest(isolation_level=level, topics=topics.values())

    return LeaderCall(lambda stub: stub.ListOffsets, request, lambda response, partitions: offsets_in(response))


def offsets_in(response: pb.ListOffsetsResponse) -> dict[TopicPartition, OffsetAndTimestamp | MillraceError]:
    """Return each partition's offset or error in a response."""
    return {
        TopicPartition(topic.name, each.partition): (
            error_in(each.error)
            or OffsetAndTimestamp(offset=each.offset, timestamp_ms=each.timestamp, leader_epoch=each.leader_epoch)
        )
        for topic in response.topics
        for each in topic.partitions
    }
