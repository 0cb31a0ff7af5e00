"""Tests of producers in asyncio, against a real broker."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer
from millrace.clients.aio import AsyncProducer
from millrace.clients.producing.memory import Waiter
from millrace.errors import (
    AbortableTransactionError,
    BufferExhaustedError,
    ClientClosedError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, eventually_async


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), STALL_S))


def _values(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    config = {"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}
    values: list[bytes] = []
    with Consumer(config) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            values += [record.value for record in consumer.poll(1000)]  # type: ignore[misc]
    return values


async def _send_many(producer: AsyncProducer, topic: str, count: int) -> None:
    for _ in range(count):
        await producer.send(topic, b"x" * 500)


def test_many_tasks_send_in_their_order(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("tasks", partitions=1)

    async def work() -> None:
        async with AsyncProducer(module_broker.bootstrap_servers) as producer:

            async def send(task: int) -> list[int]:
                futures = [await producer.send("tasks", f"{task}.{number}") for number in range(100)]
                return [(await future).offset for future in futures]

            for offsets in await asyncio.gather(*(send(task) for task in range(10))):
                assert offsets == sorted(offsets)
            place = await producer.send_and_wait("tasks", "last", key=b"k", headers={"h": b"v"}, partition=0)
            assert (place.partition, place.offset) == (0, 1000)
            assert await producer.partitions_for("tasks") == 1
            await producer.flush()
            assert (await producer.statistics()).records_sent == 1001

    _run(work)
    assert len(_values(module_broker, "tasks")) == 1001


def test_lists_and_tables_are_sent_and_their_offsets_returned(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("wholesale", partitions=1)

    async def work() -> None:
        async with AsyncProducer(module_broker.bootstrap_servers) as producer:
            await producer.send("wholesale", b"0")
            batches = await producer.send_table("wholesale", {"value": [b"1", b"2"]})
            assert [(batch.base_offset, batch.num_records) for batch in batches] == [(1, 2)]
            places = await producer.send_batch("wholesale", [b"3", (b"key", b"4")])
            assert [place.offset for place in places] == [3, 4]
            await producer.flush(STALL_S)

    _run(work)
    assert _values(module_broker, "wholesale") == [b"0", b"1", b"2", b"3", b"4"]


def test_a_full_buffer_is_awaited_while_the_loop_continues(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("narrow", partitions=2)
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "buffer.memory": 20_000, "batch.size": 2_000}

    async def work() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        async with AsyncProducer(config) as producer:
            futures = [await producer.send("narrow", b"x" * 500) for _ in range(1000)]
            await asyncio.gather(*futures)
        ticking.cancel()
        assert ticks > 100

    _run(work)
    assert len(_values(module_broker, "narrow")) == 1000


def test_a_buffer_that_stays_full_fails(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topic("stuck", partitions=1)
        config = {
            "bootstrap.servers": broker.bootstrap_servers,
            "buffer.memory": 10_000,
            "batch.size": 1_000,
            "max.block.ms": 100,
        }

        async def work() -> None:
            producer = AsyncProducer(config)
            await producer.send_and_wait("stuck", b"x")
            await asyncio.to_thread(broker.stop)
            with pytest.raises(BufferExhaustedError, match=r"buffer\.memory=10000"):
                await _send_many(producer, "stuck", 100)
            await producer.close(timeout=0)

        _run(work)


def test_errors_are_raised_by_the_send_and_a_cancelled_future_loses_no_record(
    admin: Admin, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("wrongs", partitions=1, schema="id INT NOT NULL")

    async def work() -> None:
        producer = AsyncProducer(module_broker.bootstrap_servers)
        with pytest.raises(UnknownTopicOrPartitionError, match="nowhere does not exist"):
            await producer.send("nowhere", b"x")
        with pytest.raises(UnknownTopicOrPartitionError, match="no partition 9"):
            await producer.send("wrongs", {"id": 1}, partition=9)
        with pytest.raises(SchemaMismatchError, match="column id"):
            await producer.send("wrongs", {"id": "x"})
        cancelled = await producer.send("wrongs", {"id": 1})
        cancelled.cancel()
        assert (await producer.send_and_wait("wrongs", {"id": 2})).offset == 1
        await producer.close()
        await producer.close()
        with pytest.raises(ClientClosedError):
            await producer.send("wrongs", {"id": 3})

    _run(work)


def test_a_record_that_is_not_accepted_makes_the_commit_fail(
    admin: Admin, module_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("async-refused", partitions=1)
    options = {"bootstrap.servers": module_broker.bootstrap_servers, "transactional.id": "async-refused"}

    async def work() -> None:
        async with AsyncProducer(options) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            with pytest.raises(UnknownTopicOrPartitionError, match="no partition 9"):
                await producer.send("async-refused", b"x", partition=9)
            with pytest.raises(AbortableTransactionError, match="no partition 9"):
                await producer.commit_transaction()
            await producer.abort_transaction()
            await producer.begin_transaction()
            with monkeypatch.context() as patched:
                patched.setattr(producer._core.memory, "try_acquire", lambda size_bytes: False)
                patched.setattr(producer._core.memory, "acquire_later", Waiter)
                patched.setattr(producer._core.memory, "withdraw", lambda waiter: waiter.granted)
                patched.setattr(type(producer._core), "max_block_s", 0.01)
                with pytest.raises(BufferExhaustedError):
                    await producer.send("async-refused", b"x")
            with pytest.raises(AbortableTransactionError, match=r"buffer\.memory"):
                await producer.commit_transaction()
            await producer.abort_transaction()

    _run(work)


@pytest.mark.parametrize("call", ["begin_transaction", "commit_transaction"])
def test_a_cancelled_transaction_is_over_when_its_task_ends(
    admin: Admin, module_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    topic = f"cancelled-{call}"
    admin.create_topic(topic, partitions=1)
    options = {"bootstrap.servers": module_broker.bootstrap_servers, "transactional.id": topic}

    async def work() -> None:
        async with AsyncProducer(options) as producer:
            await producer.init_transactions()
            begun, may_end = threading.Event(), threading.Event()
            original = getattr(producer._core, call)

            def waiting() -> None:
                begun.set()
                assert may_end.wait(STALL_S)
                original()

            monkeypatch.setattr(producer._core, call, waiting)

            async def send() -> None:
                async with producer.transaction():
                    await producer.send(topic, b"1")

            task = asyncio.create_task(send())
            await eventually_async(begun.is_set)
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert not task.done()
            may_end.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction():
                await producer.send(topic, b"2")

    _run(work)
    assert _values(module_broker, topic) == ([b"1", b"2"] if call == "commit_transaction" else [b"2"])


def test_a_column_that_was_widened_is_noticed(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("async-widened", partitions=1, schema="id INT", configs={"schema.compatibility": "BACKWARD"})

    async def work() -> None:
        async with AsyncProducer(module_broker.bootstrap_servers) as producer:
            await producer.send_and_wait("async-widened", {"id": 1})
            admin.evolve_schema("async-widened", "id BIGINT")
            assert (await producer.send_and_wait("async-widened", {"id": 2**40})).offset == 1
            with pytest.raises(SchemaMismatchError, match="nam"):
                await producer.send("async-widened", {"nam": 1})

    _run(work)
