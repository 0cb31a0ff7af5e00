"""Looking up offsets by time, for admin clients and consumers alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from millrace.clients.connections import Connections
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import OffsetAndTimestamp, TopicPartition
from millrace.config.client import Isolation
from millrace.errors import NotLeaderError, UsageError, error_of
from millrace.protocol import millrace_pb2 as pb

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3

_WORDS: Final = {
    "latest": LATEST,
    "end": LATEST,
    "earliest": EARLIEST,
    "beginning": EARLIEST,
    "max-timestamp": MAX_TIMESTAMP,
}


def wire_time(when: str | int | datetime) -> int:
    """A time as ListOffsets takes it: ms since the epoch, or one of its negative numbers; raises ``UsageError``."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise UsageError(f"time {when} has no zone: give it one, when.replace(tzinfo=UTC) say")
        return int(when.timestamp() * 1000)
    if isinstance(when, str):
        if when not in _WORDS:
            raise UsageError(f"offset {when!r}: it is earliest, latest, max-timestamp, or a time in ms")
        return _WORDS[when]
    return when


def isolation_number(level: str) -> pb.IsolationLevel.ValueType:
    """The wire's number of an isolation level; raises ``UsageError`` for another word."""
    try:
        return pb.READ_COMMITTED if Isolation(level) is Isolation.READ_COMMITTED else pb.READ_UNCOMMITTED
    except ValueError:
        raise UsageError(f"isolation level {level!r}: it is read_uncommitted or read_committed") from None


def list_offsets(
    connections: Connections,
    metadata: MetadataCache,
    wanted: Mapping[TopicPartition, str | int | datetime],
    *,
    isolation_level: str = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Ask the leader of each partition for the offset at a time; raises the first partition's error."""
    by_address: dict[str, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for partition, when in wanted.items():
        address = metadata.leader_address(TopicPartition(*partition))
        by_address[address][partition[0]].append((partition[1], wire_time(when)))
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    for address, topics in by_address.items():
        request = pb.ListOffsetsRequest(
            isolation_level=isolation_number(isolation_level),
            topics=[
                pb.ListOffsetsRequest.TopicTimes(
                    name=name,
                    partitions=[
                        pb.ListOffsetsRequest.PartitionTime(partition=partition, timestamp=timestamp)
                        for partition, timestamp in times
                    ],
                )
                for name, times in topics.items()
            ],
        )
        response = connections.call(lambda stub: stub.ListOffsets, request, address=address)
        found.update(_offsets(response, metadata))
    return found


def _offsets(response: pb.ListOffsetsResponse, metadata: MetadataCache) -> dict[TopicPartition, OffsetAndTimestamp]:
    found = {}
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error.code:
                error = error_of(partition.error.code, partition.error.message)
                if isinstance(error, NotLeaderError):
                    metadata.forget(topic.name)
                raise error
            found[TopicPartition(topic.name, partition.partition)] = OffsetAndTimestamp(
                offset=partition.offset, timestamp_ms=partition.timestamp, leader_epoch=partition.leader_epoch
            )
    return found
