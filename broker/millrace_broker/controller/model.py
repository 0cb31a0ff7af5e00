"""What the controller decides about: partitions, their assignment and leadership, the states they go through."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

NO_LEADER: Final = -1
LEADER_DURING_DELETE: Final = -2
"""What brokers are told of partitions that are being deleted, so that they refuse clients."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionReplica(NamedTuple):
    """A partition on a broker."""

    partition: TopicPartition
    broker_id: int


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Who has a partition, the preferred leader first. While it is being reassigned all old and new replicas have it.

    ``adding`` are those that come, ``removing`` those that go (KIP-455).
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        """Whether replicas come or go."""
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """Who had it before, and has it again when the reassignment is cancelled."""
        return tuple(each for each in self.replicas if each not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """Who is to have it in the end."""
        return tuple(each for each in self.replicas if each not in self.removing)

    def reassigned_to(self, target: tuple[int, ...]) -> ReplicaAssignment:
        """The way from where it was before any reassignment to ``target``."""
        full = tuple(dict.fromkeys((*target, *self.origin)))
        return ReplicaAssignment(
            full,
            tuple(each for each in full if each not in self.origin),
            tuple(each for each in full if each not in target),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """Who leads a partition and is in sync with it; ``partition_epoch`` is the version of its node in ZooKeeper.

    ``controller_epoch`` is that of the controller that decided it. ``leader`` may be ``NO_LEADER``; then the ISR has
    those of whom the first to come back may lead.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    controller_epoch: int

    def decided_anew(self, controller_epoch: int, *, leader: int, isr: tuple[int, ...]) -> Leadership:
        """A decision of the controller: the leader epoch grows. The partition epoch is known once it is written."""
        return replace(
            self, leader=leader, isr=isr, leader_epoch=self.leader_epoch + 1, controller_epoch=controller_epoch
        )


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A registered broker. ``epoch`` (the transaction that registered it) grows each time it comes back."""

    epoch: int
    rack: str | None = None


class PartitionState(enum.Enum):
    """What a partition goes through."""

    NON_EXISTENT = "non-existent"
    NEW = "new"
    """Assigned, and never led."""
    ONLINE = "online"
    OFFLINE = "offline"
    """Its leader has gone."""


class ReplicaState(enum.Enum):
    """What a replica goes through."""

    NON_EXISTENT = "non-existent"
    NEW = "new"
    """May only follow yet."""
    ONLINE = "online"
    OFFLINE = "offline"
    """Stopped, or its broker has gone."""
    DELETION_STARTED = "deletion started"
    DELETION_SUCCESSFUL = "deletion successful"
    DELETION_INELIGIBLE = "deletion ineligible"
    """Its broker has gone or refused to delete; tried again when the broker is back."""


PARTITION_COMES_FROM: Final[Mapping[PartitionState, frozenset[PartitionState]]] = {
    PartitionState.NON_EXISTENT: frozenset({PartitionState.OFFLINE}),
    PartitionState.NEW: frozenset({PartitionState.NON_EXISTENT}),
    PartitionState.ONLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.OFFLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
}
"""From which states a partition may come into each (Kafka's ``PartitionState.validPreviousStates``)."""

_BEFORE_ONLINE_OR_OFFLINE: Final = frozenset(
    {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
)
REPLICA_COMES_FROM: Final[Mapping[ReplicaState, frozenset[ReplicaState]]] = {
    ReplicaState.NON_EXISTENT: frozenset({ReplicaState.DELETION_SUCCESSFUL}),
    ReplicaState.NEW: frozenset({ReplicaState.NON_EXISTENT}),
    ReplicaState.ONLINE: _BEFORE_ONLINE_OR_OFFLINE,
    ReplicaState.OFFLINE: _BEFORE_ONLINE_OR_OFFLINE,
    ReplicaState.DELETION_STARTED: frozenset({ReplicaState.OFFLINE}),
    ReplicaState.DELETION_SUCCESSFUL: frozenset({ReplicaState.DELETION_STARTED}),
    ReplicaState.DELETION_INELIGIBLE: frozenset({ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED}),
}
"""From which states a replica may come into each (Kafka's ``ReplicaState.validPreviousStates``)."""
