"""Subscription of a consumer to topics by name or pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millrace.clients.assignors.model import NO_RACKS, PartitionRacks
from millrace.clients.connections import Connections
from millrace.clients.model import TopicPartition
from millrace.errors import UnknownTopicOrPartitionError, UsageError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Topics by ``names``, or by a ``pattern`` that matches whole names."""

    names: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    with_internal: bool = False

    @classmethod
    def of(cls, topics: str | Iterable[str] | re.Pattern[str], *, with_internal: bool = False) -> Subscription:
        """Parse the argument of ``subscribe``; raises ``UsageError`` for an invalid topic name."""
        if isinstance(topics, re.Pattern):
            return cls(pattern=topics, with_internal=with_internal)
        names = [topics] if isinstance(topics, str) else list(topics)
        for name in names:
            if not isinstance(name, str) or not name.strip():
                raise UsageError(f"topic {name!r}: subscribe to names of topics, or to one compiled pattern")
        return cls(names=frozenset(names))

    def matching(self, topics: Iterable[pb.Topic]) -> frozenset[str]:
        """Return the names of the subscribed topics; a subscribed name stays even if its topic does not exist."""
        if self.pattern is None:
            return self.names
        return frozenset(
            topic.name
            for topic in topics
            if (self.with_internal or not topic.is_internal) and self.pattern.fullmatch(topic.name)
        )


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """Partition counts of topics, and the racks of their replicas.

    A topic that does not exist has the count 0.
    """

    counts: Mapping[str, int]
    racks: PartitionRacks

    def as_seen_from(self, rack: str) -> TopicLayout:
        """Return the part that matters to a member: without a rack, racks do not matter."""
        return self if rack else TopicLayout(self.counts, NO_RACKS)


def fetch_topics(
    connections: Connections, names: Iterable[str] | None, timeout_ms: int | None = None
) -> list[pb.Topic]:
    """Fetch the existing topics of these names, or (``None``) all; without schemas."""
    return _present(_fetch(connections, names, timeout_ms))


def fetch_layout(connections: Connections, names: Iterable[str], timeout_ms: int | None = None) -> TopicLayout:
    """Fetch the partitions of these topics."""
    wanted = list(names)
    response = _fetch(connections, wanted, timeout_ms)
    rack_of = {node.node_id: node.rack for node in response.brokers if node.rack}
    counts = dict.fromkeys(wanted, 0)
    racks = {}
    for topic in _present(response):
        counts[topic.name] = len(topic.partitions)
        for partition in topic.partitions if rack_of else ():
            found = frozenset(rack_of[node] for node in partition.replicas if node in rack_of)
            racks[TopicPartition(topic.name, partition.partition)] = found
    return TopicLayout(counts, racks)


def _fetch(connections: Connections, names: Iterable[str] | None, timeout_ms: int | None) -> pb.MetadataResponse:
    wanted = None if names is None else sorted(names)
    if wanted is not None and not wanted:
        return pb.MetadataResponse()
    request = pb.MetadataRequest(topics=wanted or (), include_schemas=False)
    return connections.call(lambda stub: stub.Metadata, request, timeout_ms=timeout_ms)


def _present(response: pb.MetadataResponse) -> list[pb.Topic]:
    for topic in response.topics:
        if topic.error.code != UnknownTopicOrPartitionError.code:
            check_item(topic.error)
    return [topic for topic in response.topics if not topic.error.code]
