"""The controller's effects on ZooKeeper and brokers, as data.

A handler yields effects and is sent their results. Every write is one multi with a check of ``/controller_epoch``'s
version. If another controller has been elected, the runner throws ``ControllerMovedError`` into the handler, which
ends.

| effect | nodes | result |
|---|---|---|
| ``BecomeController`` | ``/controller``, ``/controller_epoch`` | the controller epoch; None if another broker won |
| ``ReadBrokers`` | ``/brokers/ids/*`` | id to ``LiveBroker`` |
| ``ReadTopics`` | ``/brokers/topics/*`` | ``TopicsFound`` |
| ``ReadLeadership`` | ``/brokers/topics/T/partitions/P/state`` | partition to ``Leadership``, of those that have one |
| ``CreateLeadership`` | the same | partition to its version, without those that existed already |
| ``WriteLeadership`` | the same, at version ``partition_epoch`` | partition to its new version, without conflicts |
| ``WriteAssignment`` | ``/brokers/topics/T`` | None |
| ``ReadDeletions`` | ``/admin/delete_topics/*`` | set of topics |
| ``DropDeletions`` | the same | None |
| ``ForgetTopic`` | ``/brokers/topics/T``, ``/config/topics/T``, ``/admin/delete_topics/T`` | None |
| ``ReadUncleanTopics`` | ``/config/topics/T``, ``/config/brokers`` | those with ``unclean.leader.election.enable`` |
| ``SendRequests`` | | None; the brokers' answers come as events |
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from millrace.errors import NotControllerError
from millrace_broker.decisions import BrokerRequest, Leadership, ReplicaAssignment, TopicPartition


class ControllerMovedError(NotControllerError):
    """Refusal of a write, because another controller has been elected.

    Nothing was written.
    """


@dataclass(frozen=True, slots=True)
class BecomeController:
    """The atomic registration as the controller, with a raised controller epoch."""


@dataclass(frozen=True, slots=True)
class ReadBrokers:
    """A read of the live brokers, with a watch."""


@dataclass(frozen=True, slots=True)
class TopicsFound:
    """The ids of all topics, and the assignments of their partitions."""

    ids: Mapping[str, uuid.UUID]
    assignments: Mapping[TopicPartition, ReplicaAssignment]


@dataclass(frozen=True, slots=True)
class ReadTopics:
    """A read of the assignments of all topics, with watches."""


@dataclass(frozen=True, slots=True)
class ReadLeadership:
    """A read of the leadership of partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class CreateLeadership:
    """The first write of the leadership of partitions."""

    leadership: Mapping[TopicPartition, Leadership]


@dataclass(frozen=True, slots=True)
class WriteLeadership:
    """A conditional write of the leadership of partitions.

    A partition is written only if the version of its node is still the ``partition_epoch``.
    """

    leadership: Mapping[TopicPartition, Leadership]


@dataclass(frozen=True, slots=True)
class WriteAssignment:
    """A write of the assignment of all partitions of a topic."""

    topic: str
    topic_id: uuid.UUID
    assignments: Mapping[int, ReplicaAssignment]


@dataclass(frozen=True, slots=True)
class ReadDeletions:
    """A read of the topics marked for deletion, with a watch."""


@dataclass(frozen=True, slots=True)
class DropDeletions:
    """The removal of the deletion marks of topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    """The removal of all nodes of a topic.

    The deletion mark is removed last.
    """

    topic: str


@dataclass(frozen=True, slots=True)
class ReadUncleanTopics:
    """A read of the topics that allow unclean leader election."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendRequests:
    """Requests for the queues of brokers, in this order for each broker."""

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
"""A handler in progress: it yields effects, is sent their results, and returns the handler's result."""
