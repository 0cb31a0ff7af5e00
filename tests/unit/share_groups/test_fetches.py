"""Tests of fetches of share groups on real logs, without the network."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace.errors import CoordinatorLoadInProgressError, MillraceError, UnknownMemberError
from millrace_broker.broker import Broker
from millrace_broker.coordinators import SHARE_STATE_TOPIC
from millrace_broker.metadata import TopicSpec
from millrace_broker.quotas import CallClass, Lease
from millrace_broker.share_groups import FetchLimits, ShareFetchPartition, ShareHeartbeat, SharePartitionData
from millrace_broker.share_groups.partition import SharePartition

from ...integration.waiting import AN_HOUR_MS, STALL_S, eventually_async
from ..groups.test_coordinator import opened

WANTED = ShareFetchPartition("orders", b"", 0)


async def led(broker: Broker) -> None:
    """Create the topic, and the one of the groups' state."""
    spec = TopicSpec(name="orders", partitions=1, configs={})
    await broker.executors.administer(broker.changes.create, spec)
    await broker.member.topics.led(["orders"], round(STALL_S * 1000))
    await broker.internal_topics.ensure(SHARE_STATE_TOPIC)


async def joined(broker: Broker) -> None:
    await led(broker)
    await beat(broker, 0)


async def beat(broker: Broker, epoch: int) -> None:
    shard = await broker.share_groups.wait_for_shard("g")
    shard.heartbeat("g", ShareHeartbeat(member_id="m", member_epoch=epoch, topics=frozenset(["orders"])))


async def fetch(broker: Broker, wait_ms: int = AN_HOUR_MS) -> SharePartitionData:
    lease = Lease(broker.admission.rooms[CallClass.CLIENT].response_bytes)
    limits = FetchLimits(records_max=10, bytes_max=1000, wait_ms=wait_ms)
    return (await broker.share_groups.fetch("g", "m", [WANTED], limits, lease))[0]


async def waiting_fetch(broker: Broker) -> asyncio.Task[SharePartitionData]:
    assert (await fetch(broker, wait_ms=0)).error is None
    fetching = asyncio.create_task(fetch(broker))
    arrivals = broker.share_groups._arrivals
    await eventually_async(lambda: arrivals.statistics().delayed)
    return fetching


def move(broker: Broker) -> None:
    """Load the group's shard again, as after a change of the leader."""
    shards = broker.share_groups._shards
    shards._role_changed(shards.number_of("g"))


def test_a_fetch_that_waits_ends_when_its_coordinator_moves(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            await joined(broker)
            fetching = await waiting_fetch(broker)
            move(broker)
            with pytest.raises(CoordinatorLoadInProgressError):
                await fetching

    asyncio.run(scenario())


def test_a_fetch_that_waits_ends_when_its_member_has_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            await joined(broker)
            fetching = await waiting_fetch(broker)
            await beat(broker, -1)
            broker.share_groups._arrivals.wake((WANTED.topic, WANTED.partition))
            with pytest.raises(UnknownMemberError):
                await fetching

    asyncio.run(scenario())


def test_a_fetch_ends_if_its_coordinator_moves_while_it_acquires_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            await joined(broker)

            async def moved(partition: SharePartition, *arguments: object, **options: object) -> None:
                move(broker)
                raise MillraceError("the shard is closed")

            monkeypatch.setattr(SharePartition, "acquire", moved)
            with pytest.raises(CoordinatorLoadInProgressError):
                await fetch(broker)

    asyncio.run(scenario())
