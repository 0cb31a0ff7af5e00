"""Tests of metadata lookups of missing topics.

The tests count the broker's requests to ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millrace.config.topic import TopicConfig
from millrace.coordination import NoNodeError
from millrace.errors import UnknownTopicOrPartitionError
from millrace_broker.cluster.missing_topics import MissingTopics
from millrace_broker.cluster.topic_lookups import TopicLookups
from millrace_broker.metadata import TopicCatalog
from millrace_broker.purgatory import Timer
from millrace_broker.replication.runtime import PartitionDirectory
from millrace_broker.runtime import Executors, SystemClock


class Time:
    """A clock in seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("age_s", "is_known"), [(0.0, True), (4.9, True), (5.0, False), (5.1, False)])
def test_a_missing_name_is_remembered_until_its_maximum_age(age_s: float, is_known: bool) -> None:
    time = Time()
    missing = MissingTopics(time.monotonic, age_max_s=5.0)
    missing.add("ordres")
    time.now_s += age_s
    assert ("ordres" in missing) == is_known
    assert "orders" not in missing


def test_the_oldest_missing_name_is_forgotten_beyond_the_limit() -> None:
    missing = MissingTopics(Time().monotonic, names_max=2)
    for name in ("a", "b", "a", "c"):
        missing.add(name)
    assert (len(missing), "a" in missing, "b" in missing, "c" in missing) == (2, True, False, True)


def test_a_missing_name_is_forgotten_when_its_topic_is_announced() -> None:
    missing = MissingTopics(Time().monotonic)
    missing.add("orders")
    missing.discard(["orders", "never asked for"])
    assert "orders" not in missing


class EmptyCoordination:
    """A ZooKeeper without topics that counts its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def exists(self, path: str, watch: Any = None) -> None:
        self.asked.append(path)

    def get(self, path: str, watch: Any = None) -> Any:
        self.asked.append(path)
        raise NoNodeError(path)


def directory_of(catalog: TopicCatalog, look_up: Callable[[str], Awaitable[None]]) -> PartitionDirectory:
    """Create the topic directory of a cluster's broker that has no logs."""
    no_logs: Any = None
    return PartitionDirectory(1, catalog, no_logs, find_replica=lambda *_: None, look_up=look_up)


def test_a_misspelt_topic_is_looked_up_in_zookeeper_once() -> None:
    coordination: Any = EmptyCoordination()

    async def look_up() -> list[int]:
        clock = SystemClock()
        executors = Executors(1, clock.monotonic)
        catalog = TopicCatalog(coordination, TopicConfig())
        lookups = TopicLookups(catalog, coordination, executors=executors, timer=Timer(clock), clock=clock)
        directory = directory_of(catalog, lookups.find)
        asked = []
        for names in (["ordres"] * 50, ["ordres"], ["other"], ["no topic's name"]):
            for error in await asyncio.gather(*map(directory.find_topic, names), return_exceptions=True):
                assert isinstance(error, UnknownTopicOrPartitionError)
            asked.append(len(coordination.asked))
        lookups.announced(["ordres"])
        with pytest.raises(UnknownTopicOrPartitionError):
            await directory.find_topic("ordres")
        asked.append(len(coordination.asked))
        executors.close()
        return asked

    once, still, two, same, three = asyncio.run(look_up())
    assert (once, still, two, same, three) == (once, once, 2 * once, 2 * once, 3 * once)
    assert once > 0
