"""The controller's state of the cluster, Kafka's ``ControllerContext``.

It is loaded only from ZooKeeper, and updated after the write that it reflects succeeds.

Invariants: every replica of an assignment has a state, and every partition too. A topic whose deletion is ineligible or
has begun is marked for deletion.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millrace_broker.controller.model import LiveBroker, PartitionReplica, PartitionState, ReplicaState
from millrace_broker.decisions import Leadership, ReplicaAssignment, TopicPartition


@dataclass(slots=True)
class ElectionCounts:
    """Numbers of leader elections that this broker held as the controller.

    ``unclean`` is the number of unclean elections among them.
    """

    held: int = 0
    unclean: int = 0


class ControllerContext:
    """The cluster as one controller knows it, in its controller epoch.

    ``elections`` count across controller epochs.
    """

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
        """The brokers that may get partitions. They are alive and not shutting down."""
        return set(self.brokers) - self.shutting_down

    @property
    def topics(self) -> set[str]:
        """All topics, including those marked for deletion."""
        return {each.topic for each in self.assignments}

    def is_to_be_deleted(self, topic: str) -> bool:
        """Return whether the topic is marked for deletion."""
        return topic in self.to_be_deleted

    def is_to_be_led(self, partition: TopicPartition) -> bool:
        """Return whether a partition needs a leader.

        A partition of a topic marked for deletion needs one while it is being reassigned. The deletion waits for the
        reassignment, which would never end without a leader (in Kafka with ZooKeeper that may happen).
        """
        return partition in self.assignments and (
            not self.is_to_be_deleted(partition.topic) or partition in self.reassigning
        )

    def partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return all partitions of topics, in order."""
        wanted = set(topics)
        return sorted(each for each in self.assignments if each.topic in wanted)

    def replicas_of(self, partitions: Iterable[TopicPartition]) -> list[PartitionReplica]:
        """Return all replicas of partitions."""
        return [
            PartitionReplica(each, broker)
            for each in partitions
            if each in self.assignments
            for broker in self.assignments[each].replicas
        ]

    def replicas_on(self, brokers: Iterable[int]) -> list[PartitionReplica]:
        """Return all replicas on brokers."""
        wanted = set(brokers)
        return [each for each in self.replicas_of(sorted(self.assignments)) if each.broker_id in wanted]

    def online(self, partition: TopicPartition, *, with_shutting_down: bool = False) -> set[int]:
        """Return the live brokers whose disk has not failed for this partition."""
        there = set(self.brokers) if with_shutting_down else self.live
        return {each for each in there if PartitionReplica(partition, each) not in self.failed}

    def online_replicas(
        self, partition: TopicPartition, replicas: Iterable[int], *, with_shutting_down: bool = False
    ) -> tuple[int, ...]:
        """Return those of ``replicas`` that are online, in their order."""
        there = self.online(partition, with_shutting_down=with_shutting_down)
        return tuple(each for each in replicas if each in there)

    def partition_state(self, partition: TopicPartition) -> PartitionState:
        """Return the state of a partition."""
        return self.partition_states.get(partition, PartitionState.NON_EXISTENT)

    def replica_state(self, replica: PartitionReplica) -> ReplicaState:
        """Return the state of a replica."""
        return self.replica_states.get(replica, ReplicaState.NON_EXISTENT)

    def without_online_leader(self) -> Iterator[TopicPartition]:
        """Return the partitions that need a leader and whose last leader is not online."""
        for partition in sorted(self.leadership):
            if self.leadership[partition].leader not in self.online(partition) and self.is_to_be_led(partition):
                yield partition

    def forget_topic(self, topic: str) -> None:
        """Remove a topic from the context."""
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
