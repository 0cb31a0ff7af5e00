"""Topics of a cluster for tests of consumer groups."""

from __future__ import annotations

import uuid

from millrace_broker.groups.consumer.topics import SubscribedTopic, matches


class Cluster:
    """``ClusterTopics`` that tests change."""

    def __init__(self, **counts: int) -> None:
        self.revision = 0
        self._topics: dict[str, SubscribedTopic] = {}
        self._created = 0
        for name, count in counts.items():
            self.create(name, count)

    def create(self, name: str, count: int) -> None:
        """Create a topic, or add partitions to it."""
        self.revision += 1
        present = self._topics.get(name)
        if present is None:
            self._created += 1
        topic_id = uuid.UUID(int=self._created) if present is None else present.topic_id
        self._topics[name] = SubscribedTopic(name, topic_id, count)

    def delete(self, name: str) -> None:
        """Delete a topic."""
        self.revision += 1
        del self._topics[name]

    def find(self, name: str) -> SubscribedTopic | None:
        return self._topics.get(name)

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        return next((topic.name for topic in self._topics.values() if topic.topic_id == topic_id), None)

    def matching(self, expression: str) -> frozenset[str]:
        return matches(expression, self._topics)

    def partitions(self, name: str) -> frozenset[tuple[uuid.UUID, int]]:
        topic = self._topics[name]
        return frozenset((topic.topic_id, number) for number in range(topic.partition_count))
