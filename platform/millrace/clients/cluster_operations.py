"""Cluster operations of ``Admin``: leader elections and reassignments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.clients.connections import Connections
from millrace.clients.grouped_by_topic import topic_partitions
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import TopicPartition
from millrace.clients.request_numbers import numbers_checked
from millrace.errors import ElectionNotNeededError, MillraceError, UsageError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import error_in

_ELECTIONS: Final = {"preferred": pb.PREFERRED, "unclean": pb.UNCLEAN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """Ongoing reassignment of a partition (Kafka's ``PartitionReassignment``).

    ``replicas`` are all current replicas. The reassignment adds those in ``adding`` and removes those in ``removing``.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """Replicas after the reassignment."""
        return tuple(each for each in self.replicas if each not in self.removing)


class ClusterOperations:
    """Operations of ``Admin`` for leaders and replicas of partitions."""

    _connections: Connections
    _metadata: MetadataCache

    @numbers_checked()
    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, election: str = "preferred"
    ) -> dict[TopicPartition, MillraceError | None]:
        """Elect leaders of partitions, or of all partitions: ``preferred`` or ``unclean``.

        An unclean election selects a replica outside the ISR if no other replica is available, and records are lost.
        Returns each partition's error, or None after an election. For all partitions, those that needed no election
        are omitted.
        """
        if election not in _ELECTIONS:
            raise UsageError(f"election {election!r}: it is {' or '.join(_ELECTIONS)}")
        request = pb.ElectLeadersRequest(
            election_type=_ELECTIONS[election],
            topics=topic_partitions(partitions or ()),
            all_partitions=partitions is None,
            timeout_ms=self._connections.config.request_timeout_ms,
        )
        # The call is idempotent, so retries are safe.
        response = self._connections.call(lambda stub: stub.ElectLeaders, request)
        answers = _errors(response.topics)
        self._metadata.forget({each.topic for each in answers})
        if partitions is not None:
            return answers
        return {each: error for each, error in answers.items() if not isinstance(error, ElectionNotNeededError)}

    @numbers_checked()
    def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, MillraceError | None]:
        """Reassign partitions to brokers, the preferred leader first; None cancels a reassignment (KIP-455).

        Returns each partition's error, or None. The reassignment continues in the background;
        ``list_partition_reassignments`` shows its progress.
        """
        request = pb.AlterPartitionReassignmentsRequest(timeout_ms=self._connections.config.request_timeout_ms)
        by_topic: dict[str, pb.AlterPartitionReassignmentsRequest.TopicTargets] = {}
        for partition, replicas in targets.items():
            name, number = partition
            topic = by_topic.get(name)
            if topic is None:
                topic = by_topic[name] = request.topics.add(name=name)
            topic.partitions.add(partition=number, replicas=replicas or (), is_cancelled=replicas is None)
        response = self._connections.call(lambda stub: stub.AlterPartitionReassignments, request)
        self._metadata.forget(by_topic)
        return _errors(response.topics)

    @numbers_checked()
    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the ongoing reassignments, of all partitions or of some."""
        request = pb.ListPartitionReassignmentsRequest(
            topics=topic_partitions(partitions or ()), all_topics=partitions is None
        )
        response = self._connections.call(lambda stub: stub.ListPartitionReassignments, request)
        return {
            TopicPartition(topic.name, each.partition): Reassignment(
                replicas=tuple(each.replicas), adding=tuple(each.adding), removing=tuple(each.removing)
            )
            for topic in response.topics
            for each in topic.partitions
        }


def _errors(topics: Iterable[pb.TopicErrors]) -> dict[TopicPartition, MillraceError | None]:
    return {
        TopicPartition(topic.name, each.partition): error_in(each.error)
        for topic in topics
        for each in topic.partitions
    }
