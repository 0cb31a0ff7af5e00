"""What the controller believes of the cluster. It is made from ZooKeeper alone, and changed after what it follows from.

Invariants: every replica of an assignment has a state, every partition too; a topic that is ineligible for deletion or
whose deletion has begun is one that is to be deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millrace_broker.controller.model import LiveBroker, PartitionReplica, PartitionState, ReplicaState
from millrace_broker.decisions import Leadership, ReplicaAssignment, TopicPartition


@dataclass(slots=True)
class ElectionCounts:
    """How many leaders a broker has elected as the controller; of these, those that were not in sync."""

    held: int = 0
    unclean: int = 0


class ControllerContext:
    """The cluster as one controller knows it, in its controller epoch. ``elections`` are counted beyond that."""

    def __init__(self, broker_id: int, elections: ElectionCounts | None = None) -> None:
        self.broker_id = broker_id
        self.elections = elections or ElectionCounts()
        self.epoch = 0
        self.brokers: dict[int, LiveBroker] = {}
        self.shutting_down: set[int] = set()
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.assignments: dict[TopicPartition, ReplicaAssignment] = {}
        self.leadership: dict[TopicPartition, Leadership] = {}
        self.partition_states: dict[TopicPartition, PartitionState] = {}
        self.replica_states: dict[PartitionReplica, ReplicaState] = {}
        self.failed: set[PartitionReplica] = set()
        self.reassigning: set[TopicPartition] = set()
        self.to_be_deleted: set[str] = set()
        self.deletion_begun: set[str] = set()
        self.ineligible_for_deletion: set[str] = set()

    @property
    def live(self) -> set[int]:
        """Brokers that may be given something: alive, and not about to go."""
        return set(self.brokers) - self.shutting_down

    @property
    def topics(self) -> set[str]:
        """All topics, those to be deleted too."""
        return {each.topic for each in self.assignments}

    def is_to_be_deleted(self, topic: str) -> bool:
        """Whether the topic is to be deleted."""
        return topic in self.to_be_deleted

    def is_to_be_led(self, partition: TopicPartition) -> bool:
        """Whether a partition needs a leader. Of a topic to be deleted it does while it is being reassigned.

        For the deletion waits for that, and without a leader it would wait for ever (in Kafka with ZooKeeper it may).
        """
        return partition in self.assignments and (
            not self.is_to_be_deleted(partition.topic) or partition in self.reassigning
        )

    def partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        """All partitions of topics, in order."""
        wanted = set(topics)
        return sorted(each for each in self.assignments if each.topic in wanted)

    def replicas_of(self, partitions: Iterable[TopicPartition]) -> list[PartitionReplica]:
        """All replicas of partitions."""
        return [
            PartitionReplica(each, broker)
            for each in partitions
            if each in self.assignments
            for broker in self.assignments[each].replicas
        ]

    def replicas_on(self, brokers: Iterable[int]) -> list[PartitionReplica]:
        """All replicas that brokers have."""
        wanted = set(brokers)
        return [each for each in self.replicas_of(sorted(self.assignments)) if each.broker_id in wanted]

    def online(self, partition: TopicPartition, *, with_shutting_down: bool = False) -> set[int]:
        """Brokers that are alive and whose disk has not failed under this partition."""
        there = set(self.brokers) if with_shutting_down else self.live
        return {each for each in there if PartitionReplica(partition, each) not in self.failed}

    def online_replicas(
        self, partition: TopicPartition, replicas: Iterable[int], *, with_shutting_down: bool = False
    ) -> tuple[int, ...]:
        """Those of ``replicas`` that are online, in their order."""
        there = self.online(partition, with_shutting_down=with_shutting_down)
        return tuple(each for each in replicas if each in there)

    def partition_state(self, partition: TopicPartition) -> PartitionState:
        """Where a partition stands."""
        return self.partition_states.get(partition, PartitionState.NON_EXISTENT)

    def replica_state(self, replica: PartitionReplica) -> ReplicaState:
        """Where a replica stands."""
        return self.replica_states.get(replica, ReplicaState.NON_EXISTENT)

    def replicas_in(self, topic: str, state: ReplicaState) -> list[PartitionReplica]:
        """The replicas of a topic that are in a state."""
        return [each for each in self.replicas_of(self.partitions_of([topic])) if self.replica_state(each) is state]

    def without_online_leader(self) -> Iterator[TopicPartition]:
        """Partitions that have been led and are to be, and whose leader is not there."""
        for partition in sorted(self.leadership):
            if self.leadership[partition].leader not in self.online(partition) and self.is_to_be_led(partition):
                yield partition

    def forget_topic(self, topic: str) -> None:
        """Drop all that is known of a topic."""
        for partition in self.partitions_of([topic]):
            for replica in self.replicas_of([partition]):
                self.replica_states.pop(replica, None)
                self.failed.discard(replica)
            self.assignments.pop(partition)
            self.leadership.pop(partition, None)
            self.partition_states.pop(partition, None)
            self.reassigning.discard(partition)
        self.topic_ids.pop(topic, None)
        for topics in (self.to_be_deleted, self.deletion_begun, self.ineligible_for_deletion):
            topics.discard(topic)
