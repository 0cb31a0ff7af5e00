"""What the controller believes: brokers, and the states that partitions and replicas go through."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace_broker.decisions import TopicPartition


class PartitionReplica(NamedTuple):
    """A partition on a broker."""

    partition: TopicPartition
    broker_id: int


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
