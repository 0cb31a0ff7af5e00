"""The topics of a cluster as one broker knows them, Kafka's ``MetadataCache``.

Invariants
* The leader of a partition comes only from UpdateMetadata. The rest of a topic (id, options, schemas) is read from its
  nodes. That happens when the topic is first named and after each notice of a change.
* A topic in deletion is not in the catalog.
* UpdateMetadata requests are applied in the order of arrival; those of an older controller are not.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from millrace.config.topic import TopicConfig
from millrace.coordination import Coordination
from millrace.coordination.nodes import TopicNode
from millrace_broker.cluster.wire import by_topic
from millrace_broker.decisions import LEADER_DURING_DELETE, LeaderAndIsrState, UpdateMetadataRequest
from millrace_broker.metadata.catalog import TopicCatalog
from millrace_broker.metadata.topics import LEADER_NONE, PartitionInfo

Partitions = dict[int, PartitionInfo]
_NO_ID: Final = uuid.UUID(int=0)


class ClusterCatalog(TopicCatalog):
    """The topics of a cluster. Changed in the administration thread, read from any thread."""

    def __init__(self, coordination: Coordination, defaults: TopicConfig) -> None:
        super().__init__(coordination, defaults)
        self._told: Final[dict[uuid.UUID, Partitions]] = {}

    def tell(self, request: UpdateMetadataRequest) -> list[str]:
        """Apply an UpdateMetadata; returns the topics that it names."""
        topics = dict(self._topics)
        for name, states in by_topic(request.partitions).items():
            topic_id = request.topic_ids.get(name)
            if topic_id is None or any(state.leadership.leader == LEADER_DURING_DELETE for state in states.values()):
                topics.pop(name, None)
                self._told.pop(topic_id or _NO_ID, None)
                continue
            told = self._told.setdefault(topic_id, {})
            told.update({number: _info(number, state) for number, state in states.items()})
            present = topics.get(name)
            if present is not None and present.topic_id == topic_id:
                topics[name] = replace(present, partitions={**present.partitions, **told})
            elif (read := self._read(name)) is not None and read.topic_id == topic_id:
                topics[name] = read
        self._swap(topics)
        return list(by_topic(request.partitions))

    def know(self, topic_ids: Mapping[str, uuid.UUID]) -> None:
        """Read the topics with these ids from their nodes unless they are known, as far as they exist."""
        for name, topic_id in topic_ids.items():
            present = self._topics.get(name)
            if present is None or present.topic_id != topic_id:
                self.refresh(name)

    def _partitions(self, name: str, topic: TopicNode) -> Partitions:
        told = self._told.get(topic.topic_id, {})
        return {number: told.get(number) or _unknown(number, replicas) for number, replicas in topic.assignment.items()}


def _info(number: int, state: LeaderAndIsrState) -> PartitionInfo:
    leadership = state.leadership
    return PartitionInfo(
        partition=number,
        leader=leadership.leader,
        leader_epoch=leadership.leader_epoch,
        replicas=state.assignment.replicas,
        isr=leadership.isr,
    )


def _unknown(number: int, replicas: Iterable[int]) -> PartitionInfo:
    return PartitionInfo(partition=number, leader=LEADER_NONE, leader_epoch=-1, replicas=tuple(replicas), isr=())
