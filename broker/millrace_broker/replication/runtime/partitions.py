"""Look-up of this broker's partitions by name.

A look-up gives topic, log and leadership. Kafka has ``ReplicaManager.getPartitionOrException`` and ``MetadataCache``. A
broker leads a partition once the controller has decided so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from millrace.errors import (
    InconsistentTopicIdError,
    LeaderNotAvailableError,
    NotLeaderError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.log import LogManager, PartitionLog
from millrace_broker.metadata import PartitionInfo, TopicCatalog, TopicInfo
from millrace_broker.purgatory import PartitionKey
from millrace_broker.replication.core import Leader
from millrace_broker.replication.runtime.hosted import HostedReplica


class ServedPartition(NamedTuple):
    """Metadata and log of a partition that this broker leads."""

    topic: TopicInfo
    info: PartitionInfo
    log: PartitionLog
    replica: HostedReplica

    @property
    def key(self) -> PartitionKey:
        """The partition's key in ``Waiters``."""
        return self.topic.name, self.info.partition

    @property
    def known_epoch(self) -> int:
        """The leader epoch that this broker knows, whichever broker leads the partition."""
        return self.replica.machine.leader_epoch

    @property
    def leader_epoch(self) -> int:
        """The leader epoch in which this broker leads. Raises ``NotLeaderError`` if it no longer leads."""
        return self.replica.leader.epoch


class LeaderAndEpoch(NamedTuple):
    """The leader of a partition and its leader epoch.

    An unknown leader or epoch is -1.
    """

    leader_id: int
    leader_epoch: int


FindReplica = Callable[[str, int], HostedReplica | None]
"""Returns the replica of a topic and partition number on this broker; None before a controller has assigned it."""


class PartitionDirectory:
    """The look-up of topics and partitions. For the event loop's thread."""

    def __init__(
        self,
        broker_id: int,
        catalog: TopicCatalog,
        logs: LogManager,
        *,
        find_replica: FindReplica,
        look_up: Callable[[str], Awaitable[None]],
    ) -> None:
        """``look_up`` reads a topic that the catalog may not have yet, and waits a moment for its leaders."""
        self._broker_id: Final = broker_id
        self._catalog: Final = catalog
        self._logs: Final = logs
        self._find_replica: Final = find_replica
        self._look_up: Final = look_up

    def topic(self, name: str, topic_id: bytes = b"") -> TopicInfo:
        """Find the topic of that name, and check its id unless ``topic_id`` is empty.

        Raises ``UnknownTopicOrPartitionError``, ``InconsistentTopicIdError``.
        """
        topic = self._catalog.topic(name)
        if topic_id and topic_id != topic.topic_id.bytes:
            raise InconsistentTopicIdError(
                f"topic {name} was deleted and created again, so it has another id than the requested one: fetch the "
                "metadata again"
            )
        return topic

    async def find_topic(self, name: str) -> TopicInfo:
        """Find the topic of that name, even if this broker does not know the topic or its leaders yet.

        Raises the same errors as ``topic``.
        """
        known = self._catalog.topics.get(name)
        if known is None or any(each.leader_epoch < 0 for each in known.partitions.values()):
            await self._look_up(name)
        return self.topic(name)

    def led(self, topic: TopicInfo, number: int, *, may_follow: bool = False) -> ServedPartition:
        """Find a partition that this broker leads, or follows if ``may_follow``.

        Raises ``UnknownTopicOrPartitionError``, ``NotLeaderError``, and ``StorageError`` if its log directory has
        failed.
        """
        info = topic.partition(number)
        replica = self._find_replica(topic.name, number)
        if replica is None:
            self._logs.get(topic.name, number)  # its error, if the log directory has failed
            raise NotLeaderError(f"{topic.name}-{number} is led by broker {info.leader}: fetch the metadata again")
        if not may_follow or replica.follower is None:
            replica.check_leads()
        log = self._logs.get(topic.name, number)
        if log is None or log.topic_id != topic.topic_id:
            # The log is being created or deleted at this moment.
            raise UnknownTopicOrPartitionError(
                f"{topic.name}-{number} is being created or deleted on this broker: fetch the metadata again"
            )
        return ServedPartition(topic, info, log, replica)

    def leader_of(self, topic: str, number: int) -> LeaderAndEpoch:
        """Find the leader of a partition by the controller's last decision here, or else by the metadata."""
        replica = self._find_replica(topic, number)
        role = None if replica is None else replica.machine.role
        if role is not None:
            return LeaderAndEpoch(self._broker_id if isinstance(role, Leader) else role.leader, role.epoch)
        known = self._catalog.topics.get(topic)
        info = None if known is None else known.partitions.get(number)
        return LeaderAndEpoch(-1, -1) if info is None else LeaderAndEpoch(info.leader, info.leader_epoch)

    def leader_elsewhere(self, partition: PartitionKey) -> int | None:
        """Find the other broker that leads a partition; None if this one does.

        Raises ``UnknownTopicOrPartitionError``, ``LeaderNotAvailableError``.
        """
        topic, number = partition
        replica = self._find_replica(topic, number)
        if replica is not None and replica.leads:
            return None
        leader = self._catalog.topic(topic).partition(number).leader
        if leader < 0 or leader == self._broker_id:  # or no request came yet
            raise LeaderNotAvailableError(f"{topic}-{number} has no leader at present")
        return leader
