"""Tests of clients in a process that is forked from their own.

The forked process gets an error, and the process that made the client goes on undisturbed.
"""

import asyncio
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, Producer, ShareConsumer
from millrace.clients.aio import AsyncConsumer, AsyncProducer
from millrace.errors import UsageError
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, Stall


def _in_forked_process(work: Callable[[], None]) -> None:
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - the process must not return to the tests
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _refused(*calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(UsageError, match="make a client in each process"):
            call()


def _read(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    values: list[bytes] = []
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    with Consumer(config) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        ends = consumer.end_offsets(consumer.assignment())
        stall = Stall("all records")
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            stall.check(len(values))
            values += [record.value for record in consumer.poll(100)]  # type: ignore[misc]
    return values


def _until_records(consumer: Any) -> list[bytes]:
    stall = Stall("records")
    while not (values := [record.value for record in consumer.poll(500)]):
        stall.check()
    return values


def test_a_forked_producer_is_refused_and_the_first_process_loses_no_record(
    admin: Admin, module_broker: EmbeddedBroker, topic: str
) -> None:
    admin.create_topic(topic, partitions=1)
    with Producer(module_broker.bootstrap_servers) as producer:
        producer.send(topic, b"0").result(STALL_S)

        def child() -> None:
            _refused(
                lambda: producer.send(topic, b"child"),
                lambda: producer.send_batch(topic, [b"child"]),
                lambda: producer.send_table(topic, {"value": [b"child"]}),
                lambda: producer.partitions_for(topic),
                producer.flush,
                producer.statistics,
            )
            producer.close()

        _in_forked_process(child)
        assert [producer.send(topic, b"%d" % n).result(STALL_S).offset for n in (1, 2)] == [1, 2]
    assert _read(module_broker, topic) == [b"0", b"1", b"2"]


def test_a_forked_producer_does_not_end_the_transaction(
    admin: Admin, module_broker: EmbeddedBroker, topic: str
) -> None:
    admin.create_topic(topic, partitions=1)
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "transactional.id": topic}
    with Producer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"kept").result(STALL_S)

        def child() -> None:
            _refused(producer.abort_transaction, producer.commit_transaction, producer.begin_transaction)
            producer.close()

        _in_forked_process(child)
        producer.commit_transaction()
    assert _read(module_broker, topic) == [b"kept"]


def test_a_forked_consumer_does_not_leave_the_group(admin: Admin, module_broker: EmbeddedBroker, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    with Producer(module_broker.bootstrap_servers) as producer:
        producer.send(topic, b"0").result(STALL_S)
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "auto.offset.reset": "earliest", "group.id": topic}
    with Consumer(config) as consumer:
        consumer.subscribe(topic)
        assert _until_records(consumer) == [b"0"]
        member_id = consumer.group_metadata().member_id

        def child() -> None:
            _refused(lambda: consumer.poll(10), consumer.commit, consumer.assignment, consumer.unsubscribe)
            consumer.close()

        _in_forked_process(child)
        consumer.commit()
        assert [member.member_id for member in admin.describe_group(topic).members] == [member_id]


def test_a_forked_share_consumer_keeps_the_records_of_the_first_process(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, options={"share.auto.offset.reset": "earliest"}) as broker:
        servers = broker.bootstrap_servers
        with Admin(servers) as admin, Producer(servers) as producer:
            admin.create_topic("t", partitions=1)
            producer.send("t", b"0").result(STALL_S)
        with ShareConsumer({"bootstrap.servers": servers, "group.id": "g"}) as consumer:
            consumer.subscribe("t")
            assert _until_records(consumer) == [b"0"]

            def child() -> None:
                _refused(lambda: consumer.poll(10), consumer.commit, lambda: consumer.subscribe("t"))
                consumer.close()

            _in_forked_process(child)
            assert list(consumer.commit().values()) == [None]


def test_forked_asyncio_clients_are_refused(admin: Admin, module_broker: EmbeddedBroker, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    producer = AsyncProducer(module_broker.bootstrap_servers)
    consumer = AsyncConsumer(module_broker.bootstrap_servers)

    async def use() -> None:
        await producer.send_and_wait(topic, b"0")
        await producer.flush()
        await consumer.partitions_for(topic)

    async def close() -> None:
        await producer.close()
        await consumer.close()

    def child() -> None:
        _refused(
            lambda: asyncio.run(producer.send_and_wait(topic, b"child")),
            lambda: asyncio.run(producer.flush()),
            lambda: asyncio.run(consumer.partitions_for(topic)),
            lambda: asyncio.run(consumer.poll(10)),
        )
        asyncio.run(close())

    asyncio.run(use())
    _in_forked_process(child)
    asyncio.run(use())
    asyncio.run(close())
    assert _read(module_broker, topic) == [b"0", b"0"]
