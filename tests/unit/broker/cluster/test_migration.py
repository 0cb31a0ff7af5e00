"""Tests of the migration of a single broker's metadata.

A store in memory takes the place of ZooKeeper.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.coordination import METADATA_FILE, Coordination, EmbeddedStore, Operation, paths
from millrace.errors import EnvironmentProblemError
from millrace_broker.cluster import migration
from millrace_broker.cluster.migration import MIGRATED_FILE, Migrated, migrate

from .test_single_broker import append, create, delete, led, running

ADDRESS = "zk:2181"


class ZooKeeper:
    """A ``SessionStore`` that outlives the brokers. Its writes fail after ``writes_left``."""

    def __init__(self) -> None:
        self._store = EmbeddedStore()
        self._sessions: list[Coordination] = []
        self.writes_left = -1

    def connect(self) -> Coordination:
        session = self._store.connect()
        apply = session.multi

        def multi(operations: Sequence[Operation]) -> Any:
            if self.writes_left == 0:
                raise EnvironmentProblemError("the process is killed")
            self.writes_left -= 1
            return apply(operations)

        setattr(session, "multi", multi)  # noqa: B010 - a method
        self._sessions.append(session)
        return session

    def close(self) -> None:
        while self._sessions:
            self._sessions.pop().close()

    def nodes(self) -> dict[str, bytes]:
        """Return the nodes that a migration copies, and their data."""
        session = self._store.connect()
        found = {path: session.get(path)[0] for path in migration._paths_below(session, "/")}
        session.close()
        return {path: data for path, data in found.items() if not path.startswith(f"{paths.CONFIG_CHANGES}/")}


@pytest.fixture
def zookeeper() -> ZooKeeper:
    return ZooKeeper()


def copy(directory: Path, zookeeper: ZooKeeper) -> Migrated:
    return migrate(directory, zookeeper, address=ADDRESS)


async def fill(directory: Path, *topics: str) -> None:
    async with running(directory) as broker:
        for topic in topics:
            await create(broker, topic, 2)
            await append(broker, topic)
            await broker.executors.administer(broker.changes.alter_config, topic, {"retention.bytes": "7"}, set())


async def start_on(zookeeper: ZooKeeper, directory: Path, *topics: str) -> None:
    """Start the broker on ZooKeeper, where it leads its partitions."""
    async with running(directory, store=zookeeper, zookeeper_connect=ADDRESS) as broker:
        assert set(broker.catalog.topics) == set(topics)
        for topic in topics:
            assert led(broker, topic) == [0, 1]
            await append(broker, topic)
            log = broker.logs.get(topic, 0)
            assert log is not None
            assert (log.log_end_offset, log.config.retention_bytes) == (2, 7)


def test_a_migrated_broker_starts_on_zookeeper_with_its_topics_and_no_longer_on_its_file(
    tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    async def scenario() -> None:
        await fill(tmp_path, "orders", "words")
        found = copy(tmp_path, zookeeper)
        assert found.topics == 2
        assert not (tmp_path / METADATA_FILE).exists()
        with pytest.raises(EnvironmentProblemError, match=r"set zookeeper\.connect"):
            await fill(tmp_path)
        await start_on(zookeeper, tmp_path, "orders", "words")
        assert copy(tmp_path, zookeeper) == Migrated(cluster_id=found.cluster_id, topics=2, nodes=0)

    asyncio.run(scenario())


def test_an_interrupted_migration_leaves_no_half_of_a_cluster_and_is_repeated(
    tmp_path: Path, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "_OPERATIONS_MAX", 5)

    async def scenario() -> None:
        await fill(tmp_path, "gone", "orders")
        expected, writes = ZooKeeper(), 0
        while True:
            zookeeper.writes_left = writes
            with contextlib.suppress(EnvironmentProblemError):
                copy(tmp_path, zookeeper)
                break
            zookeeper.writes_left = -1
            with pytest.raises(EnvironmentProblemError, match=r"incomplete migration|has no cluster"):
                await start_on(zookeeper, tmp_path, "orders")
            if writes == 2:
                async with running(tmp_path) as broker:  # the file is still in use, and its topics change
                    assert await delete(broker, "gone")
            writes += 1
        assert writes > 3
        zookeeper.writes_left = -1
        (tmp_path / MIGRATED_FILE).rename(tmp_path / METADATA_FILE)
        copy(tmp_path, expected)
        assert zookeeper.nodes() == expected.nodes()
        await start_on(zookeeper, tmp_path, "orders")

    asyncio.run(scenario())


def test_a_running_broker_is_not_migrated(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    async def scenario() -> None:
        async with running(tmp_path):
            with pytest.raises(EnvironmentProblemError, match="in use by another broker"):
                copy(tmp_path, zookeeper)
        assert zookeeper.nodes() == {}

    asyncio.run(scenario())


def test_no_broker_is_migrated_into_the_cluster_of_another(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    async def scenario() -> None:
        for name in ("one", "two"):
            await fill(tmp_path / name)
        copy(tmp_path / "one", zookeeper)
        with pytest.raises(EnvironmentProblemError, match=r"already has cluster .* use an empty chroot"):
            copy(tmp_path / "two", zookeeper)
        with pytest.raises(EnvironmentProblemError, match="was migrated to another ZooKeeper"):
            copy(tmp_path / "one", ZooKeeper())

    asyncio.run(scenario())


def test_a_zookeeper_with_brokers_or_topics_is_in_use(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    asyncio.run(fill(tmp_path))
    session = zookeeper.connect()
    for path in ("/brokers", paths.TOPICS, paths.topic_path("orders")):
        session.create(path)
    with pytest.raises(EnvironmentProblemError, match=r"is in use .*orders"):
        copy(tmp_path, zookeeper)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_directory_without_metadata_is_refused(tmp_path: Path, zookeeper: ZooKeeper, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(EnvironmentProblemError, match="first"):
        copy(tmp_path / name, zookeeper)
