"""Tests of topic changes that a crash or disk failure interrupts.

The interruption comes at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millrace.config.broker import BrokerConfig
from millrace.coordination import EmbeddedStore, paths
from millrace.coordination.nodes import BrokerNode
from millrace.errors import (
    IncompatibleSchemaError,
    InvalidPartitionsError,
    StorageError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.schemas import parse_schema, serialize_schema
from millrace_broker.log import LogManager
from millrace_broker.metadata import TopicCatalog, TopicChanges, TopicSpec, registration
from millrace_broker.metadata.alone import Alone


@dataclass
class World:
    """The state that survives a crash (store and directory). ``restart`` creates the parts over it anew."""

    store: EmbeddedStore
    directory: Path

    def restart(self) -> None:
        if hasattr(self, "logs"):
            self.logs.close()
        config = BrokerConfig.load({"log.dirs": str(self.directory), "max.partitions": "10"})
        session = self.store.connect()
        registration.ensure_roots(session)
        if session.exists(paths.broker_path(0)) is None:
            registration.register(session, 0, BrokerNode(host="h", port=1, timestamp_ms=0))
        self.session = session
        self.catalog = TopicCatalog(session, config.topic_defaults)
        self.catalog.load()
        self.logs = LogManager.open([self.directory], broker_id=0, cluster_id="c", defaults=config.topic_defaults)
        self.gone: list[str] = []
        self.alone = Alone(
            0,
            session,
            self.catalog,
            self.logs,
            controller_epoch=1,
            on_gone=lambda topic: self.gone.append(topic.name),
        )
        self.changes = TopicChanges(config, session, self.catalog, self.alone)
        self.alone.resume()

    def nodes_of(self, topic: str) -> list[str]:
        found, pending = [], ["/"]
        while pending:
            path = pending.pop()
            found.append(path)
            pending += [f"{path.rstrip('/')}/{name}" for name in self.session.children(path)]
        return sorted(path for path in found if topic in path.split("/"))

    def partitions_on_disk(self) -> list[tuple[str, int]]:
        return [(log.topic, log.partition) for log in self.logs.logs()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(EmbeddedStore(), tmp_path)
    world.restart()
    yield world
    world.logs.close()
    world.store.close()


def _failing(times_before: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function so that it fails after ``times_before`` calls."""
    calls = iter(range(times_before))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if next(calls, None) is None:
            raise StorageError("the disk is full")
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("made_before", [0, 1, 2])
def test_a_creation_that_fails_on_the_disk_is_taken_back_whole(
    world: World, monkeypatch: pytest.MonkeyPatch, made_before: int
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(world.logs, "create_log", _failing(made_before, world.logs.create_log))
        with pytest.raises(StorageError, match="full"):
            world.changes.create(TopicSpec(name="t", partitions=3, arrow_schema=_schema("a INT")))
    assert world.nodes_of("t") == []
    assert world.partitions_on_disk() == []
    assert world.changes.create(TopicSpec(name="t", partitions=3)) is not None


def test_a_creation_cut_off_before_its_logs_is_finished_at_the_next_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(world.alone, "created", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            world.changes.create(TopicSpec(name="t", partitions=2))
    assert world.partitions_on_disk() == []
    world.restart()
    assert world.partitions_on_disk() == [("t", 0), ("t", 1)]
    log = world.logs.get("t", 0)
    assert log is not None
    assert log.topic_id == world.catalog.topic("t").topic_id


@pytest.mark.parametrize("deleted_before", [0, 1, 2])
def test_a_deletion_cut_off_is_out_of_sight_and_finished_at_the_next_start(
    world: World, monkeypatch: pytest.MonkeyPatch, deleted_before: int
) -> None:
    world.changes.create(TopicSpec(name="t", partitions=3, arrow_schema=_schema("a INT")))
    with monkeypatch.context() as patched:
        patched.setattr(world.logs, "delete_log", _failing(deleted_before, world.logs.delete_log))
        with pytest.raises(StorageError):
            world.changes.delete("t")
    assert world.gone == ["t"]
    with pytest.raises(UnknownTopicOrPartitionError):
        world.catalog.topic("t")
    with pytest.raises(TopicExistsError, match="being deleted"):
        world.changes.create(TopicSpec(name="t"))
    world.restart()
    assert world.nodes_of("t") == []
    assert world.partitions_on_disk() == []
    assert world.changes.create(TopicSpec(name="t")) is not None


def test_added_partitions_cut_off_are_made_at_the_next_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.changes.create(TopicSpec(name="t", partitions=1))
    with monkeypatch.context() as patched:
        patched.setattr(world.logs, "create_log", _failing(1, world.logs.create_log))
        with pytest.raises(StorageError):
            world.changes.create_partitions("t", 4)
    world.restart()
    assert [partition for _, partition in world.partitions_on_disk()] == [0, 1, 2, 3]


def test_the_brokers_partitions_are_limited(world: World) -> None:
    world.changes.create(TopicSpec(name="t", partitions=8))
    with pytest.raises(InvalidPartitionsError, match=r"max\.partitions=10"):
        world.changes.create(TopicSpec(name="u", partitions=3))
    with pytest.raises(InvalidPartitionsError, match=r"max\.partitions=10"):
        world.changes.create_partitions("t", 11)
    world.changes.create(TopicSpec(name="u", partitions=2))


def test_a_restart_gives_logs_their_topics_configuration(world: World) -> None:
    world.changes.create(TopicSpec(name="t", configs={"segment.bytes": "5000"}))
    world.changes.alter_config("t", {"retention.bytes": "7"}, set())
    world.restart()
    log = world.logs.get("t", 0)
    assert log is not None
    assert (log.config.segment_bytes, log.config.retention_bytes) == (5000, 7)


def test_a_damaged_partition_keeps_the_broker_from_nothing_else(world: World, tmp_path: Path) -> None:
    world.changes.create(TopicSpec(name="bad"))
    world.changes.create(TopicSpec(name="good"))
    world.logs.close()
    (tmp_path / "bad-0" / "partition.metadata").write_text("nonsense")
    del world.logs
    world.restart()
    assert world.partitions_on_disk() == [("good", 0)]
    with pytest.raises(StorageError, match="offline"):
        world.logs.get("bad", 0)


def test_an_incompatible_schema_leaves_the_versions_as_they_are(world: World) -> None:
    world.changes.create(TopicSpec(name="t", arrow_schema=_schema("a INT")))
    with pytest.raises(IncompatibleSchemaError):
        world.changes.evolve_schema("t", _schema("a STRING"))
    assert len(world.catalog.topic("t").schemas) == 1
    assert world.changes.evolve_schema("t", _schema("a INT, b STRING")).id == 2


def _schema(ddl: str) -> bytes:
    return serialize_schema(parse_schema(ddl))
