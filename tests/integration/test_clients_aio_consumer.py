"""Tests of consumers in asyncio, against a real broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from millrace.clients import Admin, ConsumerInterceptor, ConsumerRecords, Producer
from millrace.clients.aio import AsyncConsumer
from millrace.errors import ClientClosedError, ConcurrentUseError, UsageError, WakeupError
from millrace_broker.testing import EmbeddedBroker

from .waiting import AN_HOUR_MS, STALL_S, eventually_async

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


def test_state_is_read_and_changed_between_polls(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "states", 10)

    async def work() -> None:
        async with AsyncConsumer(config) as consumer:
            await consumer.subscribe("states")
            assert await consumer.subscription() == {"states"}
            while not (records := await consumer.poll(100, max_records=4)):
                pass
            (partition,) = await consumer.assignment()
            assert (await consumer.high_watermark(partition), await consumer.current_lag(partition)) == (10, 6)
            committed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            tell = committed.get_loop().call_soon_threadsafe
            await consumer.commit_async(None, lambda offsets, error: tell(committed.set_result, len(offsets)))
            while not committed.done():
                await consumer.poll(0, max_records=0)
            assert committed.result() == 1
            await consumer.pause([partition])
            assert await consumer.paused() == [partition]
            await consumer.seek_to_time(0)
            assert await consumer.position(partition) == 0
            consumer.wakeup()
            consumer.forget_wakeup()
            await consumer.rejoin()
            assert not await consumer.poll(0)
            assert (await consumer.statistics()).records == len(records)

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


class _Read(ConsumerInterceptor):
    """Notification that a poll has read records."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        if records:
            self.event.set()
        return records


async def _cancel_a_poll_with_records(
    broker: EmbeddedBroker, consumer: AsyncConsumer, read: _Read, topic: str, behind: Callable[[], Awaitable[None]]
) -> int:
    """Cancel a poll that has read a record while another call waits behind it; returns the records that it returned."""
    await consumer.assign([(topic, 0)])
    polling = asyncio.create_task(consumer.poll(AN_HOUR_MS))
    await asyncio.sleep(0)
    with Producer(broker.bootstrap_servers) as producer:
        producer.send(topic, b"x").result(STALL_S)
    waiting = asyncio.ensure_future(behind())
    assert read.event.wait(STALL_S)  # the event loop does not run meanwhile
    await asyncio.sleep(0)
    polling.cancel()
    await asyncio.wait([polling])
    await waiting
    return 0 if polling.cancelled() or polling.exception() else len(polling.result())


@pytest.mark.parametrize("call", ["commit", "close"])
def test_a_call_behind_a_cancelled_poll_does_not_commit_its_records(module_broker: EmbeddedBroker, call: str) -> None:
    topic = f"behind-{call}"
    config = _filled(module_broker, topic, 0)

    async def work() -> None:
        read = _Read()
        async with AsyncConsumer({**config, "interceptor.classes": [read]}) as consumer:
            seen = await _cancel_a_poll_with_records(module_broker, consumer, read, topic, getattr(consumer, call))
        async with AsyncConsumer(config) as other:
            await other.assign([(topic, 0)])
            assert await other.position((topic, 0)) == seen

    _run(work())


def test_a_seek_behind_a_cancelled_poll_stays(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "sought", 10)

    async def work() -> None:
        read = _Read()
        async with AsyncConsumer({**config, "interceptor.classes": [read], "auto.offset.reset": "latest"}) as consumer:
            await consumer.assign([("sought", 0)])
            await consumer.position(("sought", 0))
            seek = partial(consumer.seek, ("sought", 0), 2)
            await _cancel_a_poll_with_records(module_broker, consumer, read, "sought", seek)
            assert await consumer.position(("sought", 0)) == 2

    _run(work())


def test_a_commit_beside_an_iteration_covers_what_the_loop_got(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "beside", 20)

    async def work() -> None:
        async with AsyncConsumer(config) as consumer:
            await consumer.assign([("beside", 0)])
            records = aiter(consumer)
            first = asyncio.ensure_future(anext(records))
            await asyncio.sleep(0)
            await consumer.commit()
            await first
            await consumer.commit()
            committed = await consumer.committed([("beside", 0)])
            assert [place.offset for place in committed.values() if place is not None] == [1]

    _run(work())


def test_other_calls_and_close_do_not_wait_for_a_poll(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "waiting", 0)

    async def work() -> None:
        consumer = AsyncConsumer(config)
        await consumer.assign([("waiting", 0)])
        polling = asyncio.create_task(consumer.poll(AN_HOUR_MS))
        await asyncio.sleep(0)
        for _ in range(3):
            assert await consumer.position(("waiting", 0)) == 0
        assert not polling.done()
        queued = asyncio.create_task(consumer.poll(AN_HOUR_MS))
        await asyncio.sleep(0)
        await consumer.close()
        for poll in (polling, queued):
            with pytest.raises(ClientClosedError):
                await poll

    _run(work())


def test_a_close_that_is_cancelled_closes_the_consumer(module_broker: EmbeddedBroker) -> None:
    config = _filled(module_broker, "cancelled-close", 0)

    async def work() -> None:
        consumer = AsyncConsumer(config)
        await consumer.assign([("cancelled-close", 0)])
        polling = asyncio.create_task(consumer.poll(AN_HOUR_MS))
        await asyncio.sleep(0)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(ClientClosedError):
            await polling
        await eventually_async(lambda: _is_closed(consumer), "the consumer to be closed")

    _run(work())


def _is_closed(consumer: AsyncConsumer) -> bool:
    try:
        consumer.synchronous.assignment()
    except ClientClosedError:
        return True
    except ConcurrentUseError:
        pass
    return False


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
