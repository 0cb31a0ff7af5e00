"""Tests that calls leave no reference cycles, in clients and broker.

An object in a cycle is freed only by a garbage collection. A response of many MB would stay in memory until then.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable

import pytest

from millrace.clients import Admin, Consumer, Producer, ShareConsumer, TopicPartition
from millrace.clients.aio import AsyncConsumer, AsyncProducer
from millrace.records import loops  # noqa: F401 - a thread of the broker would import it later, and leave cycles
from millrace_broker.testing import EmbeddedBroker

from .waiting import AN_HOUR_MS

CALLS = 100


def garbage_of(work: Callable[[int], None]) -> Counter[str]:
    """Return the types of objects that ``work`` leaves in cycles.

    A type counts if each of two rounds leaves one for every tenth call at least. The broker ends connections of earlier
    clients late, which leaves objects in one round.
    """
    work(10)  # what is made once
    found = garbage_of_round(work) & garbage_of_round(work)
    return Counter({name: count for name, count in found.items() if count >= CALLS / 10})


def garbage_of_round(work: Callable[[int], None]) -> Counter[str]:
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        work(CALLS)
        gc.collect()
        return Counter(type(each).__qualname__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()


@pytest.fixture
def topic(admin: Admin, topic: str) -> str:
    admin.create_topic(topic, partitions=1)
    return topic


def test_round_trips_leave_no_cycles(module_broker: EmbeddedBroker, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with Producer(module_broker.bootstrap_servers) as producer, Consumer(module_broker.bootstrap_servers) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)

        def round_trips(number: int) -> None:
            for _ in range(number):
                producer.send(topic, value=b"x").result()
                while not len(consumer.poll_table(timeout_ms=AN_HOUR_MS)):
                    pass

        assert not garbage_of(round_trips)


def test_commits_leave_no_cycles(module_broker: EmbeddedBroker, topic: str) -> None:
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "group.id": topic}
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])

        def commits(number: int) -> None:
            for _ in range(number):
                consumer.commit({TopicPartition(topic, 0): 0})

        assert not garbage_of(commits)


def test_transactions_leave_no_cycles(module_broker: EmbeddedBroker, topic: str) -> None:
    with Producer({"bootstrap.servers": module_broker.bootstrap_servers, "transactional.id": topic}) as producer:
        producer.init_transactions()

        def transactions(number: int) -> None:
            for _ in range(number):
                producer.begin_transaction()
                producer.send(topic, value=b"x")
                producer.commit_transaction()

        assert not garbage_of(transactions)


def test_share_consumers_leave_no_cycles(module_broker: EmbeddedBroker, topic: str) -> None:
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "group.id": topic}
    with Producer(module_broker.bootstrap_servers) as producer, ShareConsumer(config) as consumer:
        consumer.subscribe([topic])

        def shared(number: int) -> None:
            for _ in range(number):
                producer.send(topic, value=b"x").result()
                consumer.poll(timeout_ms=10)

        assert not garbage_of(shared)


def test_round_trips_in_an_event_loop_leave_no_cycles(module_broker: EmbeddedBroker, topic: str) -> None:
    async def run() -> None:
        partition = TopicPartition(topic, 0)
        servers = module_broker.bootstrap_servers
        async with AsyncProducer(servers) as producer, AsyncConsumer(servers) as consumer:
            await consumer.assign([partition])
            await consumer.seek(partition, 0)

            async def round_trips(number: int) -> None:
                for _ in range(number):
                    await (await producer.send(topic, value=b"x"))
                    while not len(await consumer.poll_table(timeout_ms=AN_HOUR_MS)):
                        pass

            loop = asyncio.get_running_loop()

            def work(number: int) -> None:
                asyncio.run_coroutine_threadsafe(round_trips(number), loop).result()

            found = await asyncio.to_thread(garbage_of, work)
            assert not found

    asyncio.run(run())
