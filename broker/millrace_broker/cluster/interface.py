"""What a broker is among others: by itself (``standalone``) or one of a cluster (``member``). Both answer the same.

A broker opens its metadata first, then its logs, and then takes its place. Functions that block are called in the
administration thread, ``async`` ones in the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from millrace.config.broker import Listener
from millrace.coordination import Coordination, Operation
from millrace_broker.decisions import Answers, ReplicaAssignment, TopicPartition
from millrace_broker.metadata import LiveBroker, TopicCatalog, TopicInfo
from millrace_broker.metadata.changes import Deployment


class OpenedMetadata(Protocol):
    """Metadata that a broker has opened: where it is, whose it is, the topics in it."""

    @property
    def coordination(self) -> Coordination:
        """Where the metadata is."""
        ...

    @property
    def cluster_id(self) -> str:
        """Whose it is."""
        ...

    @property
    def catalog(self) -> TopicCatalog:
        """The topics in it."""
        ...

    def notices(self, entity: str) -> list[Operation]:
        """Say what is to be written with a changed configuration of an entity, so that other brokers hear of it."""
        ...

    def close(self) -> None:
        """Let go of it. Again does nothing."""
        ...


class Membership(Protocol):
    """This broker among others."""

    def deploy(self) -> Deployment:
        """Say what follows from changes of topics; finishes what the last run left undone. It blocks."""
        ...

    async def announce(self, address: Listener) -> None:
        """Be known under this address. Raises ``EnvironmentProblemError`` when the broker's id is taken."""
        ...

    async def leave(self) -> None:
        """Let other brokers take over what this one does, because it is about to stop."""
        ...

    async def disks_failed(self) -> None:
        """Let other brokers lead what was on a disk that has failed."""
        ...

    async def close(self) -> None:
        """Be known no more, and let go of the metadata."""
        ...

    @property
    def controller_id(self) -> int:
        """The broker that is the controller; -1: none is known."""
        ...

    def live_brokers(self) -> Sequence[LiveBroker]:
        """Return the brokers that are up, by id. Raises ``BrokerUnavailableError`` as long as they are not known."""
        ...

    async def find(self, topic: str) -> None:
        """Look for a topic that is not in the catalog: this broker may not have heard of it yet."""
        ...

    async def led(self, topics: Sequence[str], timeout_ms: int) -> Sequence[str]:
        """Wait until all partitions of topics have leaders; returns the topics for which the time was too short."""
        ...

    async def gone(self, topic: TopicInfo, timeout_ms: int) -> bool:
        """Wait until nothing is left of a deleted topic; False after the time."""
        ...

    async def elect_leaders(self, request: Any) -> Answers:
        """Elect preferred leaders, or unclean ones (``ElectLeadersRequest``)."""
        ...

    async def reassign(self, request: Any) -> Answers:
        """Move partitions, or cancel that (``AlterPartitionReassignmentsRequest``)."""
        ...

    async def reassignments(self, request: Any) -> Mapping[TopicPartition, ReplicaAssignment]:
        """List what is being moved (``ListPartitionReassignmentsRequest``)."""
        ...
