"""Metadata cache of a client: topics and brokers.

Invariant: a topic's description is replaced as a whole and never edited, so that a caller's copy stays consistent.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

from millrace.clients.connections import Connections
from millrace.clients.model import (
    BrokerInfo,
    ClusterDescription,
    PartitionInfo,
    TopicDescription,
    TopicPartition,
)
from millrace.errors import LeaderNotAvailableError, UnknownTopicOrPartitionError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item
from millrace.schemas import deserialize_schema


class MetadataCache:
    """Topics by name and brokers by id, as one client sees them. Thread safe.

    With ``may_create``, requested topics are created if ``auto.create.topics.enable`` is on at the broker.
    """

    def __init__(self, connections: Connections, *, may_create: bool = False) -> None:
        self._connections = connections
        self._max_age_s = connections.config.metadata_max_age_ms / 1000
        self._retry_backoff_s = connections.config.retry_backoff_ms / 1000
        self._may_create = may_create
        self._lock = threading.Lock()
        self._topics: dict[str, tuple[float, TopicDescription]] = {}
        self._last_described: dict[str, TopicDescription] = {}
        self._addresses: dict[int, str] = {}
        self._last_heard: dict[tuple[uuid.UUID, int], PartitionInfo] = {}

    def topic(self, name: str, *, fresh: bool = False, timeout_ms: int | None = None) -> TopicDescription:
        """Describe a topic, from the cache unless it is older than ``metadata.max.age.ms`` or ``fresh`` is set.

        A fetch may take ``timeout_ms``, by default ``default.api.timeout.ms``. Raises
        ``UnknownTopicOrPartitionError`` with the remedy if the topic does not exist.
        """
        known = None if fresh else self.known(name)
        return self.fetch([name], timeout_ms)[0] if known is None else known

    def topic_with(self, partition: TopicPartition, timeout_ms: int | None = None) -> TopicDescription:
        """Describe the topic of a partition, fetched again if the partition is unknown, because it may be new.

        A fetch may take ``timeout_ms``. Raises ``UnknownTopicOrPartitionError``.
        """
        topic = self.topic(partition.topic, timeout_ms=timeout_ms)
        if not 0 <= partition.partition < topic.num_partitions:
            topic = self.topic(partition.topic, fresh=True, timeout_ms=timeout_ms)
        check_partition(topic, partition.partition)
        return topic

    def known(self, name: str) -> TopicDescription | None:
        """Return a topic from the cache, or ``None`` if it is missing or older than ``metadata.max.age.ms``."""
        known = self._topics.get(name)
        if known is None or time.monotonic() - known[0] >= self._max_age_s:
            return None
        return known[1]

    def last_known(self, name: str) -> TopicDescription | None:
        """Return a topic as a broker described it last, also if its leaders are out of date; ``None`` if never.

        A topic that a broker did not know at the last request is not returned.
        """
        return self._last_described.get(name)

    def fetch(self, names: Sequence[str] = (), timeout_ms: int | None = None) -> list[TopicDescription]:
        """Fetch topics again, all of them without ``names``; raises the first topic's error."""
        topics, missing = self.find(names, timeout_ms)
        for name in missing:
            remedy = f"create it first (millrace topics create {name})"
            if self._may_create:
                remedy = f"auto.create.topics.enable is off at the broker: {remedy}, or turn it on"
            raise UnknownTopicOrPartitionError(f"topic {name} does not exist: {remedy}")
        return topics

    def find(
        self, names: Sequence[str] = (), timeout_ms: int | None = None
    ) -> tuple[list[TopicDescription], list[str]]:
        """Fetch topics as ``fetch`` does, and return those that exist and the names of the others."""
        topics, missing = [], []
        for topic in self._request(names, timeout_ms).topics:
            if topic.error.code == UnknownTopicOrPartitionError.code:
                self.forget(topic.name)
                self._last_described.pop(topic.name, None)
                missing.append(topic.name)
            else:
                check_item(topic.error)
                topics.append(self._as_last_heard(_description(topic)))
        now = time.monotonic()
        with self._lock:
            self._topics.update((topic.name, (now, topic)) for topic in topics)
            self._last_described.update((topic.name, topic) for topic in topics)
        return topics, missing

    def _as_last_heard(self, topic: TopicDescription) -> TopicDescription:
        """Return the topic with the newest known partitions, if the broker answered with older leader epochs."""
        partitions, is_behind = [], False
        with self._lock:
            for partition in topic.partitions:
                key = topic.topic_id, partition.partition
                before = self._last_heard.get(key)
                if before is None or partition.leader_epoch >= before.leader_epoch:
                    self._last_heard[key] = partition
                else:
                    is_behind = True
                partitions.append(self._last_heard[key])
        if is_behind:
            self._connections.ask_another()
        return replace(topic, partitions=tuple(partitions))

    def cluster(self) -> ClusterDescription:
        """Fetch the cluster's brokers."""
        # Use a name that no topic can have, so that the response does not describe all topics.
        response = self._request(["."])
        brokers = tuple(
            BrokerInfo(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in response.brokers
        )
        return ClusterDescription(cluster_id=response.cluster_id, controller_id=response.controller_id, brokers=brokers)

    def _request(self, names: Sequence[str], timeout_ms: int | None = None) -> pb.MetadataResponse:
        request = pb.MetadataRequest(
            topics=names, include_schemas=True, allow_auto_topic_creation=self._may_create and bool(names)
        )
        response = self._connections.call(lambda stub: stub.Metadata, request, timeout_ms=timeout_ms)
        with self._lock:
            self._addresses = {node.node_id: broker_address(node.host, node.port) for node in response.brokers}
        self._connections.know(self._addresses.values())
        return response

    def forget(self, names: str | Iterable[str]) -> None:
        """Drop topics from the cache, so that the next call fetches them."""
        with self._lock:
            for name in [names] if isinstance(names, str) else names:
                self._topics.pop(name, None)

    def forget_old(self, name: str) -> None:
        """Drop a topic with out-of-date leaders from memory, and ask another broker next."""
        self.forget(name)
        self._connections.ask_another()

    def leader_address(self, partition: TopicPartition, timeout_ms: int | None = None) -> str:
        """Return the address of a partition's leader; the lookup may take ``timeout_ms``.

        The topic of a partition without a leader is fetched again after ``retry.backoff.ms``, once for all its
        partitions. Raises ``UnknownTopicOrPartitionError`` or, while there is no leader, ``LeaderNotAvailableError``.
        """
        known = self.known_leader_address(partition)
        if known is not None:
            return known
        fetched = self._topics.get(partition.topic)
        if fetched is not None and time.monotonic() - fetched[0] >= self._retry_backoff_s:
            self.forget(partition.topic)
        topic = self.topic_with(partition, timeout_ms)
        leader = topic.partitions[partition.partition].leader
        address = self._addresses.get(leader)
        if address is None:
            reason = (
                f"its leader, broker {leader}, is not alive"
                if leader >= 0
                else "no replica in sync is online (the logs of their brokers have the reason)"
            )
            raise LeaderNotAvailableError(f"{partition} has no leader at the moment: {reason}")
        return address

    def known_leader_address(self, partition: TopicPartition) -> str | None:
        """Return the leader's address from the cache, or ``None``."""
        topic = self.known(partition.topic)
        if topic is None or not 0 <= partition.partition < topic.num_partitions:
            return None
        return self._addresses.get(topic.partitions[partition.partition].leader)

    def address_of(self, node_id: int) -> str | None:
        """Return a broker's address by its id, if known."""
        return self._addresses.get(node_id)


def check_partition(topic: TopicDescription, partition: int) -> None:
    """Raise ``UnknownTopicOrPartitionError`` unless the topic has that partition."""
    if not 0 <= partition < topic.num_partitions:
        raise UnknownTopicOrPartitionError(
            f"topic {topic.name} has no partition {partition}: its partitions are 0 to {topic.num_partitions - 1}"
        )


def broker_address(host: str, port: int) -> str:
    """Format a broker's address as ``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _description(topic: pb.Topic) -> TopicDescription:
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition)
    return TopicDescription(
        name=topic.name,
        topic_id=uuid.UUID(bytes=topic.topic_id),
        partitions=tuple(
            PartitionInfo(
                partition=partition.partition,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                replicas=tuple(partition.replicas),
                isr=tuple(partition.isr),
            )
            for partition in partitions
        ),
        schema_id=topic.schema_id,
        schema_version=topic.schema.version,
        schema=deserialize_schema(topic.schema.arrow_schema) if topic.schema_id else None,
        read_schema=deserialize_schema(topic.read_schema or topic.schema.arrow_schema) if topic.schema_id else None,
        key_columns=tuple(topic.key_columns),
        is_internal=topic.is_internal,
    )
