"""The controller's requests to brokers: LeaderAndIsr, UpdateMetadata and StopReplica."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from millrace_broker.decisions.model import Leadership, ReplicaAssignment, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDecision:
    """A decision about a partition in a LeaderAndIsr.

    ``leader_epoch`` grows with every decision about the leader or the replicas. ``partition_epoch`` grows with every
    change, including ISR changes; it is the version of the partition's node in ZooKeeper.
    """

    controller_epoch: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrState:
    """The state of a partition in a LeaderAndIsr request.

    ``is_new`` is true if the broker has never had the replica. ``failed`` are the replicas on failed log directories.
    """

    leadership: Leadership
    assignment: ReplicaAssignment
    is_new: bool
    failed: tuple[int, ...] = ()

    def decision(self, controller_epoch: int) -> PartitionDecision:
        """Return the decision for a replica, from a request of this controller epoch."""
        leadership, assignment = self.leadership, self.assignment
        return PartitionDecision(
            controller_epoch=controller_epoch,
            leader=leadership.leader,
            leader_epoch=leadership.leader_epoch,
            partition_epoch=leadership.partition_epoch,
            isr=leadership.isr,
            replicas=assignment.replicas,
            adding=assignment.adding,
            removing=assignment.removing,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaState:
    """A replica to stop, and optionally to delete."""

    leader_epoch: int
    is_deleted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    controller_id: int
    controller_epoch: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrRequest(_Request):
    """A request to lead or follow partitions.

    ``live_leaders`` are the leaders of these partitions that are alive. A broker may have a deleted topic of the same
    name and another id. It answers ``InconsistentTopicIdError`` then.
    """

    topic_ids: Mapping[str, uuid.UUID]
    partitions: Mapping[TopicPartition, LeaderAndIsrState]
    live_leaders: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataRequest(_Request):
    """The leadership of partitions and the live brokers, for the brokers' clients."""

    topic_ids: Mapping[str, uuid.UUID]
    partitions: Mapping[TopicPartition, LeaderAndIsrState]
    live_brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaRequest(_Request):
    """A request to stop replicas."""

    partitions: Mapping[TopicPartition, StopReplicaState]


BrokerRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
