"""LeaderAndIsr, UpdateMetadata and StopReplica: what the controller tells brokers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from millrace_broker.decisions.model import Leadership, ReplicaAssignment, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDecision:
    """What the controller says of a partition (LeaderAndIsr).

    ``leader_epoch`` grows with every decision on who leads and who has it, ``partition_epoch`` with every change,
    those of the ISR among them: it is the version of the partition's node in ZooKeeper.
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
    """What a replica is told of its partition; ``is_new``: it has never had it."""

    leadership: Leadership
    assignment: ReplicaAssignment
    is_new: bool

    def decision(self, controller_epoch: int) -> PartitionDecision:
        """What a replica takes over, of a request of this controller epoch."""
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
    """A replica to stop, and perhaps to delete."""

    leader_epoch: int
    is_deleted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    controller_id: int
    controller_epoch: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrRequest(_Request):
    """Lead or follow these partitions; ``live_leaders`` are those of their leaders that are alive.

    A broker that has a topic of the same name and another id has one that was deleted: it answers
    ``InconsistentTopicIdError``.
    """

    topic_ids: Mapping[str, uuid.UUID]
    partitions: Mapping[TopicPartition, LeaderAndIsrState]
    live_leaders: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataRequest(_Request):
    """Tell clients this of partitions, and that these brokers are alive."""

    topic_ids: Mapping[str, uuid.UUID]
    partitions: Mapping[TopicPartition, LeaderAndIsrState]
    live_brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaRequest(_Request):
    """Stop these replicas."""

    partitions: Mapping[TopicPartition, StopReplicaState]


BrokerRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
