"""A broker's place among others: by itself (``standalone``) or in a cluster (``cluster.member``). Both answer the same.

What blocks is called in the administration thread, what is ``async`` on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from millrace.config.broker import Listener
from millrace.coordination import Coordination, Operation
from millrace_broker.decisions import Answers, ReplicaAssignment, TopicPartition
from millrace_broker.log import LogManager
from millrace_broker.metadata import LiveBroker, TopicCatalog, TopicInfo
from millrace_broker.metadata.changes import Deployment

Notices = Callable[[str], list[Operation]]
"""What is to be written with a changed configuration of an entity, so that other brokers hear of it."""


class Opened(NamedTuple):
    """Where the metadata is, whose it is, and the topics in it."""

    coordination: Coordination
    cluster_id: str
    catalog: TopicCatalog


class Membership(Protocol):
    """This broker among others."""

    def open(self) -> Opened:
        """Find the metadata. Raises ``EnvironmentProblemError``."""
        ...

    def deploy(self, logs: LogManager, on_gone: Callable[[TopicInfo], None]) -> Deployment:
        """Say what follows from changes of topics; finishes what the last run left undone.

        ``on_gone`` is called with topics that no longer answer, before their logs are deleted.
        """
        ...

    def disconnect(self) -> None:
        """Let go of the metadata."""
        ...

    def notices(self, entity: str) -> list[Operation]:
        """See ``Notices``."""
        ...

    async def announce(self, address: Listener) -> None:
        """Be known under this address. Raises ``EnvironmentProblemError`` when the broker's id is taken."""
        ...

    async def leave(self) -> None:
        """The broker is about to stop: let others take over what it does."""
        ...

    async def disks_failed(self) -> None:
        """A disk of this broker has failed: others may be able to lead what was on it."""
        ...

    async def close(self) -> None:
        """Be known no more."""
        ...

    @property
    def controller_id(self) -> int:
        """The broker that is the controller; -1: none is known."""
        ...

    def live_brokers(self) -> Sequence[LiveBroker]:
        """The brokers that are up, by id. Raises ``BrokerUnavailableError`` as long as they are not known."""
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
        """What is being moved (``ListPartitionReassignmentsRequest``)."""
        ...
