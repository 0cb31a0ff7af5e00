"""Tests of a broker without ZooKeeper.

The broker is the only member of its cluster, and keeps its metadata in a file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.coordination import METADATA_FILE, Coordination, Create, EmbeddedStore, NoNodeError, SessionStore, paths
from millrace.coordination.nodes import BrokerNode, PartitionStateNode
from millrace.errors import NotLeaderError, StorageError, TopicExistsError, UnknownTopicOrPartitionError
from millrace.records import Record, build_rows_batch
from millrace_broker.broker import Broker
from millrace_broker.log import ProducedBatches
from millrace_broker.metadata import TopicCatalog, TopicChanges, TopicInfo, TopicSpec, registration
from millrace_broker.opening import open_broker

from ....integration.waiting import STALL_S, eventually_async

WAIT_MS = round(STALL_S * 1000)
_OLD_EPOCH = 4


def config(directory: Path, **options: str) -> BrokerConfig:
    values = {name.replace("_", "."): value for name, value in options.items()}
    return BrokerConfig.load({"log.dirs": str(directory), **values})


@asynccontextmanager
async def running(directory: Path, *, store: SessionStore | None = None, **options: str) -> AsyncIterator[Broker]:
    endpoints = {"PLAINTEXT": Listener("127.0.0.1", 1)}
    broker = await open_broker(config(directory, **options), endpoints=endpoints, store=store)
    try:
        await broker.announce()
        yield broker
        await broker.leave()
    finally:
        await broker.close()


async def create(broker: Broker, name: str, partitions: int = 1) -> TopicInfo:
    await broker.executors.administer(broker.changes.create, TopicSpec(name=name, partitions=partitions))
    assert not await broker.member.topics.led([name], WAIT_MS)
    return broker.catalog.topic(name)


async def delete(broker: Broker, name: str, timeout_ms: int = WAIT_MS) -> bool:
    topic = await broker.executors.administer(broker.changes.delete, name)
    return await broker.member.topics.gone(topic, timeout_ms)


async def append(broker: Broker, topic: str, number: int = 0) -> None:
    partition = broker.partitions.led(broker.partitions.topic(topic), number)
    batch = build_rows_batch([Record(key=None, value=b"v", timestamp_ms=broker.clock.now_ms())])
    await broker.appends.append(partition, ProducedBatches(batch, partition.log.config))


def led(broker: Broker, topic: str) -> list[int]:
    """Return the partitions that the broker leads, with a readable log."""
    info = broker.catalog.topic(topic)
    found = [broker.partitions.led(info, number) for number in info.partitions]
    assert all(each.log.high_watermark == each.log.log_end_offset for each in found)
    return [each.info.partition for each in found]


def on_disk(broker: Broker) -> list[tuple[str, int]]:
    return sorted((log.topic, log.partition) for log in broker.logs.logs())


def nodes_of(session: Coordination, topic: str) -> list[str]:
    found, pending = [], ["/"]
    while pending:
        path = pending.pop()
        found.append(path)
        pending += [f"{path.rstrip('/')}/{name}" for name in session.children(path)]
    return sorted(path for path in found if topic in path.split("/"))


def change_nodes(directory: Path, change: Callable[[Coordination, TopicChanges], Any]) -> None:
    """Change the nodes in the file of a broker that does not run."""
    store = EmbeddedStore(directory / METADATA_FILE)
    session = store.connect()
    registration.ensure_roots(session)
    registration.register(session, 0, BrokerNode(host="h", port=1, timestamp_ms=0))
    catalog = TopicCatalog(session, config(directory).topic_defaults)
    catalog.load()
    changes = TopicChanges(config(directory), session, catalog, configured=lambda *_: None, gone=lambda _: None)
    change(session, changes)
    store.close()


def test_a_start_ends_when_all_partitions_are_led_again_in_their_epochs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await create(broker, "t", 3)
            await append(broker, "t", 1)
        async with running(tmp_path) as broker:
            assert led(broker, "t") == [0, 1, 2]
            assert {each.leader_epoch for each in broker.catalog.topic("t").partitions.values()} == {0}
            assert broker.member.controller_id == 0
            assert broker.statistics().controlling.cluster is not None

    asyncio.run(scenario())


def test_partition_states_of_older_releases_keep_their_epochs(tmp_path: Path) -> None:
    def write(session: Coordination, changes: TopicChanges) -> None:
        """Create a topic in one transaction, as a broker without a controller did."""
        changes.create(TopicSpec(name="t", partitions=2))
        state = PartitionStateNode(controller_epoch=1, leader=0, leader_epoch=_OLD_EPOCH, isr=(0,)).encode()
        for number in range(2):
            session.create(paths.partition_path("t", number))
            session.create(paths.partition_state_path("t", number), state)

    change_nodes(tmp_path, write)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            assert led(broker, "t") == [0, 1]
            assert {each.leader_epoch for each in broker.catalog.topic("t").partitions.values()} == {_OLD_EPOCH}
            await append(broker, "t")
            log = broker.logs.get("t", 0)
            assert log is not None
            assert log.epochs.entries == ((_OLD_EPOCH, 0),)

    asyncio.run(scenario())


def test_a_creation_that_a_crash_interrupted_is_finished_at_the_next_start(tmp_path: Path) -> None:
    change_nodes(tmp_path, lambda _, changes: changes.create(TopicSpec(name="t", partitions=2)))

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            assert led(broker, "t") == [0, 1]
            assert on_disk(broker) == [("t", 0), ("t", 1)]

    asyncio.run(scenario())


def test_partitions_that_a_crash_interrupted_are_created_at_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await create(broker, "t")
        change_nodes(tmp_path, lambda _, changes: changes.create_partitions("t", 3))
        async with running(tmp_path) as broker:
            assert led(broker, "t") == [0, 1, 2]

    asyncio.run(scenario())


def test_a_deletion_that_a_crash_interrupted_is_finished_at_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await create(broker, "t", 2)
            await create(broker, "kept")
        change_nodes(tmp_path, lambda session, _: session.create(paths.delete_topic_path("t")))
        async with running(tmp_path) as broker:
            await eventually_async(lambda: nodes_of(broker.coordination, "t") == [], "the nodes to be removed")
            assert on_disk(broker) == [("kept", 0)]
            await create(broker, "t")

    asyncio.run(scenario())


def test_a_deletion_removes_logs_and_nodes_and_frees_the_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            first = await create(broker, "t", 2)
            assert await delete(broker, "t")
            assert (on_disk(broker), nodes_of(broker.coordination, "t")) == ([], [])
            with pytest.raises(UnknownTopicOrPartitionError):
                broker.catalog.topic("t")
            assert (await create(broker, "t")).topic_id != first.topic_id

    asyncio.run(scenario())


def test_a_topic_whose_mark_alone_is_removed_is_not_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, delete_topic_enable="false") as broker:
            topic = await create(broker, "t")
            await broker.executors.administer(broker.coordination.create, paths.delete_topic_path("t"))
            await broker.executors.administer(broker.catalog.refresh, "t")
            assert not await broker.member.topics.gone(topic, timeout_ms=200)
            assert broker.catalog.topic("t").topic_id == topic.topic_id

    asyncio.run(scenario())


def test_a_deletion_that_a_stop_interrupts_is_finished_at_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await create(broker, "t", 20)
            await broker.executors.administer(broker.changes.delete, "t")
        async with running(tmp_path) as broker:
            await eventually_async(lambda: nodes_of(broker.coordination, "t") == [], "the nodes to be removed")
            assert on_disk(broker) == []

    asyncio.run(scenario())


def _failing(times_before: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function so that it fails after ``times_before`` calls."""
    calls = iter(range(times_before))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if next(calls, None) is None:
            raise StorageError("the disk is full")
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("deleted_before", [0, 1])
def test_a_deletion_that_fails_on_the_disk_is_out_of_sight_and_finished_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted_before: int
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await create(broker, "t", 2)
            with monkeypatch.context() as patched:
                patched.setattr(broker.logs, "delete_log", _failing(deleted_before, broker.logs.delete_log))
                assert not await delete(broker, "t", timeout_ms=50)
            with pytest.raises(UnknownTopicOrPartitionError):
                broker.catalog.topic("t")
            with pytest.raises(TopicExistsError, match="being deleted"):
                await create(broker, "t")
        async with running(tmp_path) as broker:
            await eventually_async(lambda: nodes_of(broker.coordination, "t") == [], "the nodes to be removed")
            assert on_disk(broker) == []

    asyncio.run(scenario())


def test_a_partition_whose_log_cannot_be_created_has_no_leader_until_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            with monkeypatch.context() as patched:
                patched.setattr(broker.logs, "create_log", _failing(1, broker.logs.create_log))
                await broker.executors.administer(broker.changes.create, TopicSpec(name="t", partitions=2))
                await eventually_async(
                    lambda: [each.leader for each in broker.catalog.topic("t").partitions.values()] == [0, -1],
                    "the partition to be offline",
                )
            await append(broker, "t", 0)
            with pytest.raises(NotLeaderError):
                await append(broker, "t", 1)
        async with running(tmp_path) as broker:
            assert led(broker, "t") == [0, 1]

    asyncio.run(scenario())


def test_a_damaged_partition_is_refused_with_its_error_and_concerns_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for name in ("bad", "good"):
                await create(broker, name)
        (tmp_path / "bad-0" / "partition.metadata").write_text("nonsense")
        async with running(tmp_path) as broker:
            assert led(broker, "good") == [0]
            with pytest.raises(StorageError, match="offline"):
                await append(broker, "bad")

    asyncio.run(scenario())


def test_logs_have_their_topics_configuration_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await create(broker, "t")
            await broker.executors.administer(broker.changes.alter_config, "t", {"retention.bytes": "7"}, set())
            for _ in range(2):
                log = broker.logs.get("t", 0)
                assert log is not None
                assert log.config.retention_bytes == 7
        async with running(tmp_path) as broker:
            log = broker.logs.get("t", 0)
            assert log is not None
            assert log.config.retention_bytes == 7

    asyncio.run(scenario())


def test_the_controller_reacts_to_nodes_that_another_session_writes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await create(broker, "t")
            session = broker.member._metadata.store.connect()
            await broker.executors.administer(session.multi, [Create(paths.delete_topic_path("t"))])
            await eventually_async(lambda: on_disk(broker) == [], "the log to be deleted")
            session.close()

    asyncio.run(scenario())


def test_a_stop_leaves_no_registration_and_no_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path):
            pass

    asyncio.run(scenario())
    store = EmbeddedStore(tmp_path / METADATA_FILE)
    session = store.connect()
    assert session.children(paths.BROKER_IDS) == []
    with pytest.raises(NoNodeError):
        session.get(paths.CONTROLLER)
    assert session.get(paths.CONTROLLER_EPOCH)[0] == b"1"
    store.close()
