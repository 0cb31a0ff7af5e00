"""Topics that are gone, told to all parts that keep something of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace_broker.metadata.topics import TopicInfo
from millrace_broker.runtime import Executors


class GoneTopics:
    """Tells subscribers of topics that no longer answer. They are called in the event loop, one after the other."""

    def __init__(self, executors: Executors) -> None:
        self._executors: Final = executors
        self._subscribers: Final[list[Callable[[TopicInfo], None]]] = []

    def subscribe(self, forget: Callable[[TopicInfo], None]) -> None:
        """Have a function called with each topic that is gone."""
        self._subscribers.append(forget)

    def tell(self, topic: TopicInfo) -> None:
        """Say from any thread that a topic is gone; its logs may not be deleted yet."""
        self._executors.on_loop(self._tell, topic)

    def _tell(self, topic: TopicInfo) -> None:
        for forget in self._subscribers:
            forget(topic)
