"""Tests of the group coordinator on real logs, without the network."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.coordinator_records import ConsumerProtocolSubscription, write_versioned
from millrace.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidCommitOffsetSizeError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
)
from millrace.records import EndTransactionMarker
from millrace.records.control import ControlType
from millrace_broker.broker import Broker
from millrace_broker.coordinators import OFFSETS_TOPIC, StateRecord, partition_of
from millrace_broker.groups import (
    CommittedOffset,
    GroupShard,
    Identity,
    JoinAnswer,
    JoinRequest,
    MemberIdGiven,
    SyncRequest,
)
from millrace_broker.groups.records import group_key
from millrace_broker.metadata import TopicSpec
from millrace_broker.opening import open_broker

from ...integration.waiting import eventually_async

SUBSCRIPTION = write_versioned(ConsumerProtocolSubscription(topics=("read",), user_data=None), 3)
SIMPLE = Identity(member_id="")
T0 = ("t", 0)


def join_request(member_id: str = "", **fields: Any) -> JoinRequest:
    request: dict[str, Any] = {
        "member_id": member_id,
        "new_member_id": "c-1",
        "group_instance_id": None,
        "client_id": "c",
        "client_host": "/h",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": (("range", SUBSCRIPTION),),
        **fields,
    }
    return JoinRequest(**request)


def commit(offset: int) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", 1000)


@asynccontextmanager
async def opened(directory: Path, **options: str) -> AsyncIterator[Broker]:
    values = {
        "log.dirs": str(directory),
        "offsets.topic.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "0",
        **options,
    }
    broker = await open_broker(BrokerConfig.load(values), endpoints={"PLAINTEXT": Listener("127.0.0.1", 1)})
    await broker.announce()
    await broker.internal_topics.ensure(OFFSETS_TOPIC)
    try:
        yield broker
    finally:
        await broker.close()


async def shard_of(broker: Broker, group_id: str) -> GroupShard:
    def loaded() -> GroupShard | None:
        try:
            return broker.groups.shard_of(group_id)
        except CoordinatorLoadInProgressError:
            return None

    return await eventually_async(loaded, "the coordinator to load")


async def end_transaction(broker: Broker, group_id: str, producer_id: int, *, committed: bool) -> None:
    """End a transaction as the transaction coordinator does."""
    number = partition_of(group_id, broker.groups.partition_count)
    log = broker.partitions.led(broker.partitions.topic(OFFSETS_TOPIC), number).log
    marker = EndTransactionMarker(type=ControlType.COMMIT if committed else ControlType.ABORT, coordinator_epoch=0)
    log.append_end_marker_unsynced(producer_id, 0, marker)
    await broker.groups.complete_transaction(number, producer_id, committed=committed)


def run(scenario: Callable[[Path], Coroutine[Any, Any, None]], directory: Path) -> None:
    asyncio.run(scenario(directory))


@pytest.mark.parametrize("session_timeout_ms", [5999, 1_800_001])
def test_sessions_are_within_the_brokers_limits(tmp_path: Path, session_timeout_ms: int) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            with pytest.raises(InvalidSessionTimeoutError):
                await shard.join("g", join_request(session_timeout_ms=session_timeout_ms))
            assert "g" not in shard.entries
            for accepted_ms in (6000, 1_800_000):
                given = await shard.join("g", join_request(session_timeout_ms=accepted_ms))
                assert isinstance(given, MemberIdGiven)

    run(scenario, tmp_path)


async def joined(shard: GroupShard, group_id: str) -> Identity:
    given = await shard.join(group_id, join_request())
    assert isinstance(given, MemberIdGiven)
    answer = await shard.join(group_id, join_request(given.member_id))
    assert isinstance(answer, JoinAnswer)
    identity = Identity(member_id=answer.member_id, generation_id=answer.generation_id)
    await shard.sync(group_id, SyncRequest(identity=identity, assignments={answer.member_id: b"mine"}))
    return identity


def test_groups_and_offsets_are_read_again(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            member = await joined(shard, "g")
            await shard.commit("g", member, {T0: commit(4), ("t", 1): commit(5)})
            await shard.commit("simple", SIMPLE, {T0: commit(6)})
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            entry = shard.entries["g"]
            assert [committed.offset for committed in entry.offsets.committed.values()] == [4, 5]
            assert entry.group.state.value == "Stable"
            assert entry.state_since_ms > 0
            await shard.heartbeat("g", member)
            simple = (await shard_of(broker, "simple")).entries
            assert "simple" not in simple or simple["simple"].offsets.get(T0) is not None
            assert broker.statistics().groups.heartbeats.delayed == 1

    run(scenario, tmp_path)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
def test_offsets_of_a_transaction_count_once_it_is_committed(tmp_path: Path, committed: bool, restarts: bool) -> None:
    async def verify() -> None:
        """Answer as a coordinator that knows the transaction."""

    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            await shard.commit("g", SIMPLE, {T0: commit(1)})
            for offset in (7, 8):
                transaction = await shard.log.transaction(5, 0, verify, begins=False)
                await shard.commit_transactional("g", SIMPLE, {T0: commit(offset)}, transaction)
            assert shard.entries["g"].offsets.is_unstable(T0)
            if not restarts:
                await check(broker)
        if restarts:
            async with opened(directory) as broker:
                assert (await shard_of(broker, "g")).entries["g"].offsets.is_unstable(T0)
                await check(broker)
        async with opened(directory) as broker:
            assert_committed(await shard_of(broker, "g"))

    async def check(broker: Broker) -> None:
        await end_transaction(broker, "g", 5, committed=committed)
        assert_committed(await shard_of(broker, "g"))

    def assert_committed(shard: GroupShard) -> None:
        found = shard.entries["g"].offsets
        assert not found.is_unstable(T0)
        assert found.committed[T0].offset == (8 if committed else 1)

    run(scenario, tmp_path)


def test_a_group_that_cannot_be_read_keeps_its_offsets(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            await shard.commit("g", SIMPLE, {T0: commit(1)})
            await shard.log.append([StateRecord(group_key("g"), b"\0\x63of a later version")])
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            assert shard.entries["g"].offsets.committed[T0].offset == 1
            await joined(shard, "g")

    run(scenario, tmp_path)


def test_offsets_of_a_deleted_topic_are_forgotten(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await broker.executors.administer(broker.changes.create, TopicSpec(name="t", partitions=1))
            shard = await shard_of(broker, "g")
            await shard.commit("g", SIMPLE, {T0: commit(1), ("kept", 0): commit(2)})
            await broker.executors.administer(broker.changes.delete, "t")
            await eventually_async(lambda: T0 not in shard.entries["g"].offsets.committed)
        async with opened(directory) as broker:
            assert list((await shard_of(broker, "g")).entries["g"].offsets.committed) == [("kept", 0)]

    run(scenario, tmp_path)


def test_expired_offsets_and_then_the_group_are_forgotten(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            member = await joined(shard, "g")
            await shard.commit("g", member, {T0: commit(1)})
            assert await shard.expire(0) == 1  # of no topic to which the group subscribes
            await shard.leave("g", member)
            await shard.expire(10_000)
            assert "g" not in shard.entries
        async with opened(directory) as broker:
            assert "g" not in (await shard_of(broker, "g")).entries

    run(scenario, tmp_path)


def test_a_deleted_group_is_not_read_again(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            member = await joined(shard, "g")
            await shard.commit("g", member, {("t", number): commit(1) for number in range(1500)})
            await shard.leave("g", member)
            await shard.delete_group("g")
            assert "g" not in shard.entries
        async with opened(directory) as broker:
            assert "g" not in (await shard_of(broker, "g")).entries

    run(scenario, tmp_path)


def test_a_commit_is_finished_though_its_caller_has_gone(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            task = asyncio.create_task(shard.commit("g", SIMPLE, {T0: commit(1)}))
            await asyncio.sleep(0)
            task.cancel()
            await eventually_async(lambda: T0 in shard.entries["g"].offsets.committed)
            assert task.cancelled()

    run(scenario, tmp_path)


def test_nothing_is_left_of_a_caller_that_has_gone(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory, **{"group.initial.rebalance.delay.ms": "60000"}) as broker:
            shard = await shard_of(broker, "g")
            given = await shard.join("g", join_request())
            task = asyncio.create_task(shard.join("g", join_request(given.member_id)))
            while not shard.entries["g"].group.open_calls:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not shard.entries["g"].group.open_calls
            assert not shard._callers._waiting
            assert broker.statistics().admission.requests == 0
        gc.collect()

    run(scenario, tmp_path)


def test_a_waiting_caller_gets_an_error_when_the_broker_stops(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory, **{"group.initial.rebalance.delay.ms": "60000"}) as broker:
            shard = await shard_of(broker, "g")
            given = await shard.join("g", join_request())
            task = asyncio.create_task(shard.join("g", join_request(given.member_id)))
            while not shard.entries["g"].group.open_calls:
                await asyncio.sleep(0)
            broker.groups.release()
            with pytest.raises(CoordinatorNotAvailableError):
                await task

    run(scenario, tmp_path)


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory, **{"message.max.bytes": "100000"}) as broker:
            with pytest.raises(InvalidGroupIdError):
                broker.groups.shard_of("")
            shard = await shard_of(broker, "g")
            with pytest.raises(IllegalGenerationError):
                await shard.commit("g", Identity(member_id="m", generation_id=3), {T0: commit(1)})
            with pytest.raises(IllegalGenerationError):
                await shard.commit("g", Identity(member_id="m", generation_id=3, kafka_version=8), {T0: commit(1)})
            with pytest.raises(GroupIdNotFoundError):
                await shard.commit("g", Identity(member_id="m", generation_id=3, kafka_version=9), {T0: commit(1)})
            assert "g" not in shard.entries
            with pytest.raises(InvalidCommitOffsetSizeError):
                await shard.commit("g", SIMPLE, {("t" * 200, number): commit(1) for number in range(900)})
            assert shard.entries["g"].offsets.is_empty

    run(scenario, tmp_path)
