"""Look-ups of unknown topics, and waits for leaders and deletions.

Invariant: the broker looks a missing name up in ZooKeeper only once in a while, however often clients ask for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from millrace.coordination import Coordination, OnLoop, Watch, paths
from millrace.topic_names import is_topic_name
from millrace_broker.cluster.missing_topics import MissingTopics
from millrace_broker.metadata import TopicCatalog, TopicInfo
from millrace_broker.purgatory import Conditions, Timer
from millrace_broker.runtime import Clock, Executors

_FINDING_MS: Final = 1_000
"""The longest wait for the leaders of a topic that this broker did not know."""


class TopicLookups:
    """Look-ups of topics, and waits for them. For the event loop's thread."""

    def __init__(
        self, catalog: TopicCatalog, coordination: Coordination, *, executors: Executors, timer: Timer, clock: Clock
    ) -> None:
        self._catalog: Final = catalog
        self._coordination: Final = coordination
        self._executors: Final = executors
        self._waits: Final[Conditions[str]] = Conditions("topic", timer)
        self._missing: Final = MissingTopics(clock.monotonic)

    async def find(self, topic: str) -> None:
        """Look for a topic that was created through another broker, and wait a moment for its leaders."""
        if not is_topic_name(topic) or topic in self._missing:
            return
        if await self._executors.administer(self._look_up, topic):
            await self.led([topic], _FINDING_MS)

    def _look_up(self, topic: str) -> bool:
        """Read a topic's nodes in the administration thread, unless a recent look-up found nothing."""
        if topic in self._missing:
            return False
        is_there = self._catalog.refresh(topic) is not None
        if not is_there:
            self._missing.add(topic)
        return is_there

    def announced(self, topics: Iterable[str]) -> None:
        """Take note that an UpdateMetadata has named topics."""
        self._missing.discard(topics)

    def check(self, topics: Iterable[str]) -> None:
        """Check the waits for topics, which may have leaders or be deleted now."""
        for name in topics:
            self._waits.check(name)

    async def led(self, topics: Sequence[str], timeout_ms: int) -> Sequence[str]:
        """Wait until all partitions of topics have leaders; returns the topics for which the time was too short."""
        waited = await asyncio.gather(
            *(self._waits.until(name, partial(self._is_led, name), timeout_ms) for name in topics)
        )
        return [name for name, is_led in zip(topics, waited, strict=True) if not is_led]

    def _is_led(self, name: str) -> bool:
        topic = self._catalog.topics.get(name)
        return topic is not None and all(each.leader >= 0 for each in topic.partitions.values())

    async def gone(self, topic: TopicInfo, timeout_ms: int) -> bool:
        """Wait until a deleted topic is removed completely; returns False after the time."""
        is_over = False

        def look(*_: object) -> None:
            looking = asyncio.ensure_future(self._executors.administer(self._is_gone, topic, watch))
            looking.add_done_callback(found)

        def found(looking: asyncio.Future[Any]) -> None:
            nonlocal is_over
            if looking.cancelled() or looking.exception() is not None:
                return
            is_over = looking.result()
            self._waits.check(topic.name)

        watch = OnLoop(asyncio.get_running_loop(), look)
        look()
        return await self._waits.until(topic.name, lambda: is_over, timeout_ms)

    def _is_gone(self, topic: TopicInfo, watch: Watch) -> bool:
        """Read in the administration thread whether a topic is removed, and watch its mark until then.

        A controller with ``delete.topic.enable=false`` removes the mark alone. The topic then is in the catalog again.
        """
        if self._coordination.exists(paths.delete_topic_path(topic.name), watch) is not None:
            return False
        present = self._catalog.refresh(topic.name)
        return present is None or present.topic_id != topic.topic_id

    def close(self) -> None:
        """End all waits, because the broker stops."""
        self._waits.close()
