"""Brokers in the controller's state, and the states of partitions and replicas."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace_broker.decisions import TopicPartition


class PartitionReplica(NamedTuple):
    """A replica of a partition on a broker."""

    partition: TopicPartition
    broker_id: int


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A registered broker. ``epoch``, the transaction of its registration, grows with each registration.

    ``version`` grows when the broker changes its registered addresses.
    """

    epoch: int
    rack: str | None = None
    version: int = 0


class PartitionState(enum.Enum):
    """The states of a partition."""

    NON_EXISTENT = "non-existent"
    NEW = "new"
    """Assigned, but without a leader so far."""
    ONLINE = "online"
    OFFLINE = "offline"
    """The leader is offline."""


class ReplicaState(enum.Enum):
    """The states of a replica."""

    NON_EXISTENT = "non-existent"
    NEW = "new"
    """New: it can only follow, not lead."""
    ONLINE = "online"
    OFFLINE = "offline"
    """Stopped, or its broker is offline."""
    DELETION_STARTED = "deletion started"
    DELETION_SUCCESSFUL = "deletion successful"
    DELETION_INELIGIBLE = "deletion ineligible"
    """Its broker is offline or refused to delete it; the controller retries when the broker is back."""


PARTITION_COMES_FROM: Final[Mapping[PartitionState, frozenset[PartitionState]]] = {
    PartitionState.NON_EXISTENT: frozenset({PartitionState.OFFLINE}),
    PartitionState.NEW: frozenset({PartitionState.NON_EXISTENT}),
    PartitionState.ONLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.OFFLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
}
"""The valid previous states of each partition state (Kafka's ``PartitionState.validPreviousStates``)."""

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
"""The valid previous states of each replica state (Kafka's ``ReplicaState.validPreviousStates``)."""
