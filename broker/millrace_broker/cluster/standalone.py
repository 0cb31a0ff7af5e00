"""A standalone broker, with its metadata beside its data.

It leads all partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.acls import ResourcePattern
from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.coordination import METADATA_FILE, Coordination, EmbeddedStore, Operation
from millrace.errors import (
    ElectionNotNeededError,
    EnvironmentProblemError,
    InvalidReplicaAssignmentError,
    MillraceError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.cluster.wire import partitions_of
from millrace_broker.decisions import Answers, ReplicaAssignment, TopicPartition
from millrace_broker.log import Files, LogManager, read_meta_properties
from millrace_broker.metadata import LiveBroker, TopicCatalog, TopicInfo, registration
from millrace_broker.metadata.alone import Alone
from millrace_broker.metadata.changes import Deployment
from millrace_broker.metadata.gone_topics import GoneTopics
from millrace_broker.runtime import Clock, Executors


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedMetadata:
    """Open metadata in a file beside the data."""

    store: EmbeddedStore
    coordination: Coordination
    cluster_id: str
    catalog: TopicCatalog

    def notices(self, entity: str) -> list[Operation]:
        """Return no operations, because there is no other broker."""
        return []

    def acl_notices(self, pattern: ResourcePattern) -> list[Operation]:
        """Return no operations, because there is no other broker."""
        return []

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def open_embedded_metadata(config: BrokerConfig, *, directory: Path, files: Files, clock: Clock) -> EmbeddedMetadata:
    """Open the store in a directory and read the topics. It blocks. Raises ``EnvironmentProblemError``."""
    _check_metadata_file(files, directory)
    store = EmbeddedStore(directory / METADATA_FILE, now_ms=clock.now_ms)
    try:
        coordination = store.connect()
        registration.ensure_roots(coordination)
        cluster_id = registration.cluster_id(coordination)
        catalog = TopicCatalog(coordination, config.topic_defaults)
        catalog.load()
    except BaseException:
        store.close()
        raise
    return EmbeddedMetadata(store=store, coordination=coordination, cluster_id=cluster_id, catalog=catalog)


def _check_metadata_file(files: Files, directory: Path) -> None:
    """Refuse to start a new cluster's metadata beside the data of an old one."""
    owner = read_meta_properties(files, directory)
    if owner and not (directory / METADATA_FILE).exists():
        raise EnvironmentProblemError(
            f"{directory} holds data of broker {owner.get('broker.id')} of cluster {owner.get('cluster.id')}, but "
            f"not its metadata ({METADATA_FILE}): set zookeeper.connect if the metadata is in ZooKeeper, restore the "
            "order of log.dirs, or use another data directory"
        )


class Standalone:
    """The only broker of its cluster."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        metadata: EmbeddedMetadata,
        logs: LogManager,
        executors: Executors,
        clock: Clock,
        gone: GoneTopics,
    ) -> None:
        """``gone`` is called for deleted topics, before their logs are deleted."""
        self._config: Final = config
        self._id: Final = config.broker_id
        self._metadata: Final = metadata
        self._logs: Final = logs
        self._executors: Final = executors
        self._clock: Final = clock
        self._gone: Final = gone
        self._brokers: tuple[LiveBroker, ...] = ()

    def deploy(self) -> Deployment:
        """Return the deployment of topics by this broker itself."""
        config, coordination = self._config, self._metadata.coordination
        epoch = registration.become_controller(coordination, config.broker_id, now_ms=self._clock.now_ms())
        alone = Alone(
            config.broker_id,
            coordination,
            self._metadata.catalog,
            self._logs,
            controller_epoch=epoch,
            on_gone=self._gone.tell,
        )
        alone.resume()
        return alone

    async def announce(self, endpoints: Mapping[str, Listener]) -> None:
        """Register; topic changes read the live brokers from there."""
        config = self._config
        now_ms = self._clock.now_ms()
        node = registration.broker_node(
            endpoints,
            rack=config.broker_rack,
            timestamp_ms=now_ms,
            security_protocol_of=config.security_protocol_of,
        )
        await self._executors.administer(registration.register, self._metadata.coordination, config.broker_id, node)
        self._brokers = (registration.live_broker(config.broker_id, node),)

    async def leave(self) -> None:
        """Do nothing, because no other broker can take over."""

    async def disks_failed(self) -> None:
        """Do nothing, because no other broker can take over."""

    async def close(self) -> None:
        """Close the store."""
        await self._executors.administer(self._metadata.close)

    @property
    def controller_id(self) -> int:
        """The id of this broker, which decides itself."""
        return self._id

    def live_brokers(self) -> Sequence[LiveBroker]:
        """Return this broker."""
        return self._brokers

    async def find(self, topic: str) -> None:
        """Do nothing, because the catalog has all topics."""

    async def led(self, topics: Sequence[str], timeout_ms: int) -> Sequence[str]:
        """Return no topics, because this broker leads all of them from the beginning."""
        return ()

    async def gone(self, topic: TopicInfo, timeout_ms: int) -> bool:
        """Return True, because a topic is deleted before its deletion is answered."""
        return True

    async def elect_leaders(self, request: pb.ElectLeadersRequest) -> Answers:
        """Elect no leaders, because this broker leads every partition, which is its preferred leader."""
        return {
            partition: self._unknown(partition)
            or ElectionNotNeededError(f"{partition} is led by its preferred leader already: broker {self._id}")
            for partition in partitions_of(request.topics)
        }

    async def reassign(self, request: pb.AlterPartitionReassignmentsRequest) -> Answers:
        """Accept reassignments to this broker, where the partitions are already. Report an error for all others."""
        return {
            TopicPartition(topic.name, each.partition): self._cannot_reassign(topic.name, each)
            for topic in request.topics
            for each in topic.partitions
        }

    async def reassignments(
        self, request: pb.ListPartitionReassignmentsRequest
    ) -> Mapping[TopicPartition, ReplicaAssignment]:
        """Return no reassignments."""
        return {}

    def _unknown(self, partition: TopicPartition) -> MillraceError | None:
        try:
            self._metadata.catalog.topic(partition.topic).partition(partition.partition)
        except UnknownTopicOrPartitionError as error:
            return error
        return None

    def _cannot_reassign(
        self, topic: str, wanted: pb.AlterPartitionReassignmentsRequest.PartitionTarget
    ) -> MillraceError | None:
        partition = TopicPartition(topic, wanted.partition)
        if (unknown := self._unknown(partition)) is not None:
            return unknown
        if wanted.is_cancelled:
            return NoReassignmentInProgressError(f"{partition} is not being reassigned: there is nothing to cancel")
        if list(wanted.replicas) != [self._id]:
            return InvalidReplicaAssignmentError(
                f"{partition} on {list(wanted.replicas)}: broker {self._id} runs alone, because "
                "zookeeper.connect is not set"
            )
        return None
