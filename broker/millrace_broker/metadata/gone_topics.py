"""Notification of deleted topics to the parts that keep data of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace_broker.metadata.topics import TopicInfo
from millrace_broker.runtime import Executors


class GoneTopics:
    """Notifier of topics that no longer answer. Subscribers run in the event loop, one after the other."""

    def __init__(self, executors: Executors) -> None:
        self._executors: Final = executors
        self._subscribers: Final[list[Callable[[TopicInfo], None]]] = []

    def subscribe(self, forget: Callable[[TopicInfo], None]) -> None:
        """Call ``forget`` with each deleted topic."""
        self._subscribers.append(forget)

    def report(self, topic: TopicInfo) -> None:
        """Report a deleted topic, from any thread. Its logs may still exist."""
        self._executors.on_loop(self._notify, topic)

    def _notify(self, topic: TopicInfo) -> None:
        for forget in self._subscribers:
            forget(topic)
