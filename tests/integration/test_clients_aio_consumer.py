"""Tests of consumers in asyncio, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from millrace.clients import Admin, Producer
from millrace.clients.aio import AsyncConsumer
from millrace.errors import ClientClosedError, UsageError, WakeupError
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S

QUICK = {"auto.offset.reset": "earliest", "heartbeat.interval.ms": "50", "metadata.max.age.ms": "200"}


BROKER_OPTIONS = {"group.initial.rebalance.delay.ms": "0"}


def _filled(broker: EmbeddedBroker, topic: str, records: int) -> dict[str, str]:
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topic(topic, partitions=1)
        if records:
            producer.send_table(topic, {"value": [b"%d" % n for n in range(records)]})
    return {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, **QUICK}


def _run(work: Awaitable[None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work, STALL_S)

    asyncio.run(limited())


def test_two_members_in_one_event_loop_share_the_records(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "two-tasks", 100)

    async def work() -> None:
        async with AsyncConsumer(config) as one, AsyncConsumer(config) as two:
            await asyncio.gather(one.subscribe("two-tasks"), two.subscribe("two-tasks"))
            seen = 0
            while seen < 100:
                polled = await asyncio.gather(one.poll(100), two.poll(100))
                seen += sum(map(len, polled))
            owner = one if await one.assignment() else two
            await owner.commit()
            (partition,) = await owner.assignment()
            committed = await owner.committed([partition])
            assert committed[partition] is not None
            assert committed[partition].offset == 100
            await owner.seek(partition, 90)
            assert (await owner.poll_table(5000)).num_rows == 10

    _run(work())


def test_records_are_iterated_over(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "iterated", 20)

    async def work() -> None:
        async with AsyncConsumer(config) as consumer:
            await consumer.assign(await consumer.partitions_for("iterated"))
            offsets = []
            async for record in consumer:
                offsets.append(record.offset)
                if len(offsets) == 20:
                    break
            assert offsets == list(range(20))

    _run(work())


def test_nothing_is_lost_by_cancelling(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "cancelled", 2000)

    async def work() -> None:
        async with AsyncConsumer({**config, "max.poll.records": "7"}) as consumer:
            await consumer.subscribe("cancelled")
            offsets: list[int] = []
            step = 0
            while len(offsets) < 2000:
                step += 1
                task = asyncio.create_task(consumer.poll(200))
                await asyncio.wait([task], timeout=(step % 7) / 10_000)
                if step % 3 == 0 and not task.done():
                    task.cancel()
                    await asyncio.wait([task])
                    continue
                offsets += [record.offset for record in await task]
            assert offsets == list(range(2000))

    _run(work())


def test_records_of_a_cancelled_poll_are_not_committed(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "uncommitted", 300)

    async def work() -> None:
        offsets: list[int] = []
        step = 0
        while len(offsets) < 300:
            step += 1
            async with AsyncConsumer({**config, "max.poll.records": "7"}) as consumer:
                await consumer.assign([("uncommitted", 0)])
                for _ in range(step % 4):
                    offsets += [record.offset for record in await consumer.poll(200)]
                task = asyncio.create_task(consumer.poll(200))
                await asyncio.wait([task], timeout=(step % 7) / 1000)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    offsets += [record.offset for record in task.result()]
        assert offsets == list(range(300))

    _run(work())


def test_the_cancellation_of_a_poll_that_has_not_begun_ends_no_other_call(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "queued", 0)

    async def work() -> None:
        async with AsyncConsumer(config) as consumer:
            await consumer.assign([("queued", 0)])
            first = asyncio.create_task(consumer.poll(1000))
            await asyncio.sleep(0)
            second = asyncio.create_task(consumer.poll(60_000))
            await asyncio.sleep(0)
            second.cancel()
            assert not await first

    _run(work())


def test_an_iteration_commits_what_it_has_passed_on(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "passed", 20)

    async def work() -> None:
        async with AsyncConsumer(config) as consumer:
            await consumer.assign([("passed", 0)])
            async for record in consumer:
                if record.offset == 4:
                    break
        async with AsyncConsumer(config) as consumer:
            await consumer.assign([("passed", 0)])
            assert await consumer.position(("passed", 0)) == 5

    _run(work())


def test_a_poll_that_waits_is_cancelled_at_once_and_can_be_woken_up(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "woken", 0)

    async def work() -> None:
        async with AsyncConsumer(config) as consumer:
            with pytest.raises(UsageError, match="no partitions are assigned"):
                await consumer.poll(0)
            await consumer.subscribe("woken")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(60_000), 0.2)
            assert not await consumer.poll(0)
            task = asyncio.create_task(consumer.poll(60_000))
            await asyncio.wait([task], timeout=0.1)
            consumer.wakeup()
            with pytest.raises(WakeupError):
                await task
        await consumer.close()
        with pytest.raises(ClientClosedError):
            await consumer.poll()

    _run(work())
