"""The common interface of a standalone broker and a cluster member.

The implementations are ``standalone`` and ``member``.

A broker opens its metadata first, then its logs, and then joins the cluster. Blocking functions are called in the
administration thread, ``async`` ones in the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from millrace.config.listeners import Listener
from millrace.coordination import Coordination, Operation
from millrace_broker.decisions import Answers, ReplicaAssignment, TopicPartition
from millrace_broker.metadata import LiveBroker, TopicCatalog, TopicInfo
from millrace_broker.metadata.changes import Deployment


class OpenedMetadata(Protocol):
    """Metadata that a broker has opened: the store, the cluster's id, the topics."""

    @property
    def coordination(self) -> Coordination:
        """The coordination service that stores the metadata."""
        ...

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        ...

    @property
    def catalog(self) -> TopicCatalog:
        """The topics of the cluster."""
        ...

    def notices(self, entity: str) -> list[Operation]:
        """Return the operations that notify other brokers of an entity's changed configuration."""
        ...

    def close(self) -> None:
        """Close the metadata. A second call does nothing."""
        ...


class Membership(Protocol):
    """The membership of this broker in its cluster."""

    def deploy(self) -> Deployment:
        """Return the consequences of topic changes; finishes those that the last process left undone. It blocks."""
        ...

    async def announce(self, endpoints: Mapping[str, Listener]) -> None:
        """Register under these addresses of the listeners, by their names.

        Raises ``EnvironmentProblemError`` when the broker's id is taken.
        """
        ...

    async def leave(self) -> None:
        """Move leaders to other brokers, because this broker is about to stop."""
        ...

    async def disks_failed(self) -> None:
        """Have other brokers lead the partitions of a failed disk."""
        ...

    async def close(self) -> None:
        """Remove the registration and close the metadata."""
        ...

    @property
    def controller_id(self) -> int:
        """The id of the controller; -1 if none is known."""
        ...

    def live_brokers(self) -> Sequence[LiveBroker]:
        """Return the live brokers by id. Raises ``BrokerUnavailableError`` while they are not known."""
        ...

    async def find(self, topic: str) -> None:
        """Look for a topic that is not in the catalog, because this broker may not know it yet."""
        ...

    async def led(self, topics: Sequence[str], timeout_ms: int) -> Sequence[str]:
        """Wait until all partitions of topics have leaders; returns the topics for which the time was too short."""
        ...

    async def gone(self, topic: TopicInfo, timeout_ms: int) -> bool:
        """Wait until a deleted topic is removed completely; returns False after the time."""
        ...

    async def elect_leaders(self, request: Any) -> Answers:
        """Elect preferred leaders, or unclean ones (``ElectLeadersRequest``)."""
        ...

    async def reassign(self, request: Any) -> Answers:
        """Reassign partitions, or cancel that (``AlterPartitionReassignmentsRequest``)."""
        ...

    async def reassignments(self, request: Any) -> Mapping[TopicPartition, ReplicaAssignment]:
        """List the reassignments in progress (``ListPartitionReassignmentsRequest``)."""
        ...
