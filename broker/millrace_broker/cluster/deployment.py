"""Topic changes in a cluster, which the controller reads and announces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from millrace.config.topic import TopicConfig
from millrace.coordination import Operation, paths
from millrace_broker.cluster.notifications import notice
from millrace_broker.metadata.assignment import Assignment
from millrace_broker.metadata.topics import TopicInfo


class Told:
    """The deployment of topics by the controller.

    ``on_configured`` applies a topic's configuration on this broker, ``on_gone`` is called for deleted topics.
    """

    def __init__(self, on_configured: Callable[[str, TopicConfig], None], on_gone: Callable[[TopicInfo], None]) -> None:
        self._on_configured: Final = on_configured
        self._on_gone: Final = on_gone

    def nodes(self, topic: str, assignment: Assignment) -> list[Operation]:
        """Return no operations, because the controller writes the leadership."""
        return []

    def notices(self, topic: str) -> list[Operation]:
        """Return the notice that makes all brokers read the topic again."""
        return [notice(paths.config_entity("topics", topic))]

    def created(self, topic: TopicInfo, partitions: Iterable[int]) -> None:
        """Do nothing; the controller elects leaders and requests the creation of the logs."""

    def deleted(self, topic: TopicInfo) -> None:
        """Report the deleted topic; the controller has brokers delete the logs, and then removes the nodes."""
        self._on_gone(topic)

    def configured(self, topic: str, config: TopicConfig) -> None:
        """Apply the configuration on this broker at once; other brokers get a notice."""
        self._on_configured(topic, config)
