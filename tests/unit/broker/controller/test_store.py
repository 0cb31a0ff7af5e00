"""Tests of watch events that arrive while the administration thread reads."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.config.broker import BrokerConfig
from millrace.coordination import Create, EmbeddedStore, Write, paths
from millrace.coordination.nodes import BrokerNode, TopicNode
from millrace_broker.controller.effects import ReadBrokers, ReadTopics
from millrace_broker.controller.store import ControllerStore
from millrace_broker.decisions import TopicPartition
from millrace_broker.metadata import registration


class Interrupted:
    """A session that another thread interrupts.

    The other thread acts right after a read of a path.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self.acts: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get(self, path: str, watch: Any = None) -> Any:
        found = self._session.get(path, watch)
        self.acts.pop(path, lambda: None)()
        return found

    def exists(self, path: str, watch: Any = None) -> Any:
        found = self._session.exists(path, watch)
        self.acts.pop(path, lambda: None)()
        return found


@pytest.fixture
def session() -> Iterator[Interrupted]:
    store = EmbeddedStore()
    session = store.connect()
    registration.ensure_roots(session)
    yield Interrupted(session)
    store.close()


def store_of(session: Any) -> ControllerStore:
    return ControllerStore(session, BrokerConfig.load({}), lambda: 0, lambda name: lambda event: None)


def create(session: Interrupted, topic: str) -> None:
    session.multi([Create(paths.topic_path(topic), TopicNode(uuid.uuid4(), {0: (1, 2)}).encode())])


def test_a_topic_that_changes_while_it_is_read_is_read_again(session: Interrupted) -> None:
    create(session, "t")
    store, path = store_of(session), paths.topic_path("t")

    def enlarge() -> None:
        node = TopicNode.decode(session.get(path)[0])
        session.multi([Write(path, TopicNode(node.topic_id, {0: (1, 2), 1: (2, 1)}).encode())])
        store.topic_changed(path)

    session.acts[path] = enlarge
    assert set(store.carry_out(ReadTopics()).assignments) == {TopicPartition("t", 0)}
    assert set(store.carry_out(ReadTopics()).assignments) == {TopicPartition("t", 0), TopicPartition("t", 1)}


WITHOUT_ID = b'{"version":1,"partitions":{"0":[1,2]}}'


@pytest.mark.parametrize("data", [b"", b"nonsense", WITHOUT_ID])
def test_an_unreadable_topic_is_left_out_until_it_is_repaired(session: Interrupted, data: bytes) -> None:
    create(session, "t")
    session.create(paths.topic_path("bad"), data)
    store = store_of(session)
    assert set(store.carry_out(ReadTopics()).ids) == {"t"}
    session.set(paths.topic_path("bad"), TopicNode(uuid.uuid4(), {0: (1,)}).encode())
    store.topic_changed(paths.topic_path("bad"))
    assert set(store.carry_out(ReadTopics()).ids) == {"bad", "t"}


def test_a_known_topic_that_becomes_unreadable_stays_until_it_is_removed(session: Interrupted) -> None:
    create(session, "t")
    store, path = store_of(session), paths.topic_path("t")
    before = store.carry_out(ReadTopics())
    session.set(path, b"nonsense")
    store.topic_changed(path)
    assert store.carry_out(ReadTopics()) == before
    session.delete(path)
    store.topic_changed(path)
    assert store.carry_out(ReadTopics()).ids == {}


def test_an_event_of_a_topic_changes_nothing_before_the_next_read(session: Interrupted) -> None:
    # A read goes through all topics in another thread at that time.
    for topic in ("t", "u"):
        create(session, topic)
    store = store_of(session)
    store.carry_out(ReadTopics())
    iterator = iter(store._topics.items())
    next(iterator)
    store.topic_changed(paths.topic_path("t"))
    assert next(iterator)[0] == "u"
    assert set(store.carry_out(ReadTopics()).ids) == {"t", "u"}


def test_a_broker_that_changes_while_brokers_are_read_is_watched_again(session: Interrupted) -> None:
    registration.register(session, 1, BrokerNode(host="h", port=1, timestamp_ms=0))
    store, path, watched = store_of(session), paths.broker_path(1), []
    session.acts[path] = lambda: store.broker_changed(path)
    store.carry_out(ReadBrokers())
    session.acts[path] = lambda: watched.append(path)
    store.carry_out(ReadBrokers())
    assert watched == [path]
