"""What follows from changes of topics in a cluster: the controller sees what was written, and tells the brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from millrace.config.topic import TopicConfig
from millrace.coordination import Operation, paths
from millrace_broker.cluster.notifications import notice
from millrace_broker.metadata.assignment import Assignment
from millrace_broker.metadata.topics import TopicInfo


class Told:
    """The controller does it.

    ``on_configured`` takes over a topic's configuration here, ``on_gone`` is told of topics that no longer answer.
    """

    def __init__(self, on_configured: Callable[[str, TopicConfig], None], on_gone: Callable[[TopicInfo], None]) -> None:
        self._on_configured: Final = on_configured
        self._on_gone: Final = on_gone

    def nodes(self, topic: str, assignment: Assignment) -> list[Operation]:
        """The controller writes down who leads."""
        return []

    def notices(self, topic: str) -> list[Operation]:
        """All brokers read the topic anew."""
        return [notice(paths.config_entity("topics", topic))]

    def created(self, topic: TopicInfo, partitions: Iterable[int]) -> None:
        """The controller chooses leaders and tells brokers to make the logs."""

    def deleted(self, topic: TopicInfo) -> None:
        """The controller tells brokers to delete the logs, and removes the nodes when all have."""
        self._on_gone(topic)

    def configured(self, topic: str, config: TopicConfig) -> None:
        """Take it over here at once; other brokers hear of it."""
        self._on_configured(topic, config)
