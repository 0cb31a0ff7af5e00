"""What the controller wants of ZooKeeper and of brokers, as data: a handler yields these and is sent the results.

Every write is one multi with a check of ``/controller_epoch``'s version: when another controller has been elected, the
one who carries effects out throws ``ControllerMovedError`` into the handler, which ends there.

| effect | nodes | result |
|---|---|---|
| ``BecomeController`` | ``/controller``, ``/controller_epoch`` | the controller epoch, or None: another one is |
| ``ReadBrokers`` | ``/brokers/ids/*`` | id to ``LiveBroker`` |
| ``ReadTopics`` | ``/brokers/topics/*`` | ``TopicsFound`` |
| ``ReadLeadership`` | ``/brokers/topics/T/partitions/P/state`` | partition to ``Leadership``, of those that have one |
| ``CreateLeadership`` | the same | partition to its version; those that exist already are missing |
| ``WriteLeadership`` | the same, at version ``partition_epoch`` | partition to its new version; conflicts are missing |
| ``WriteAssignment`` | ``/brokers/topics/T`` | None |
| ``ReadDeletions`` | ``/admin/delete_topics/*`` | set of topics |
| ``DropDeletions`` | the same | None |
| ``ForgetTopic`` | ``/brokers/topics/T``, ``/config/topics/T``, ``/admin/delete_topics/T`` | None |
| ``ReadUncleanTopics`` | ``/config/topics/T``, ``/config/brokers`` | those with ``unclean.leader.election.enable`` |
| ``SendRequests`` | | None; what brokers answer comes as an event |
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from millrace.errors import NotControllerError
from millrace_broker.decisions import BrokerRequest, Leadership, ReplicaAssignment, TopicPartition


class ControllerMovedError(NotControllerError):
    """Another controller has been elected: nothing was written."""


@dataclass(frozen=True, slots=True)
class BecomeController:
    """Register as the controller and raise the controller epoch, in one."""


@dataclass(frozen=True, slots=True)
class ReadBrokers:
    """Read who is alive, and go on watching."""


@dataclass(frozen=True, slots=True)
class TopicsFound:
    """All topics: their ids, and the assignments of their partitions."""

    ids: Mapping[str, uuid.UUID]
    assignments: Mapping[TopicPartition, ReplicaAssignment]


@dataclass(frozen=True, slots=True)
class ReadTopics:
    """Read the assignments of all topics, and go on watching them."""


@dataclass(frozen=True, slots=True)
class ReadLeadership:
    """Read who leads these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class CreateLeadership:
    """Write who leads partitions for the first time."""

    leadership: Mapping[TopicPartition, Leadership]


@dataclass(frozen=True, slots=True)
class WriteLeadership:
    """Write who leads partitions, of each if its version is still the ``partition_epoch``."""

    leadership: Mapping[TopicPartition, Leadership]


@dataclass(frozen=True, slots=True)
class WriteAssignment:
    """Write the assignment of all partitions of a topic."""

    topic: str
    topic_id: uuid.UUID
    assignments: Mapping[int, ReplicaAssignment]


@dataclass(frozen=True, slots=True)
class ReadDeletions:
    """Read which topics are to be deleted, and go on watching."""


@dataclass(frozen=True, slots=True)
class DropDeletions:
    """Forget that topics are to be deleted."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    """Remove all nodes of a topic; its mark of deletion last."""

    topic: str


@dataclass(frozen=True, slots=True)
class ReadUncleanTopics:
    """Ask which of these topics may be led by a replica that was not in sync, if no other is left."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendRequests:
    """Put requests into the queues of brokers, in this order for each."""

    requests: Mapping[int, Collection[BrokerRequest]]


Effect = (
    BecomeController
    | ReadBrokers
    | ReadTopics
    | ReadLeadership
    | CreateLeadership
    | WriteLeadership
    | WriteAssignment
    | ReadDeletions
    | DropDeletions
    | ForgetTopic
    | ReadUncleanTopics
    | SendRequests
)

ResultT = TypeVar("ResultT")
Steps = Generator[Effect, Any, ResultT]
"""A handler under way: yields effects, is sent their results, and returns what it was called for."""
