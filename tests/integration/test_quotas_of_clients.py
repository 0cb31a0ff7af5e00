"""Tests of quotas of the asyncio clients and of share consumers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from millrace.clients import Admin, Producer, ShareConsumer
from millrace.clients.aio import AsyncConsumer, AsyncProducer
from millrace.quotas import QuotaEntity
from millrace_broker.testing import EmbeddedBroker

from .consumer_groups import QUICK_GROUPS
from .quota_use import RATE, RECORD, check_rate, use_of
from .waiting import STALL_S, Stall

BROKER_OPTIONS = {**QUICK_GROUPS, "share.auto.offset.reset": "earliest"}
COUNT = 48


@pytest.fixture
def limited(admin: Admin, topic: str) -> Iterator[str]:
    """Return a client id with quotas for both directions."""
    entity = QuotaEntity.of([("client-id", topic)])
    admin.alter_client_quotas(entity, {"producer_byte_rate": RATE, "consumer_byte_rate": RATE})
    yield topic
    admin.alter_client_quotas(entity, {}, remove=["producer_byte_rate", "consumer_byte_rate"])


def test_clients_of_asyncio_wait_as_their_quota_wants(
    module_broker: EmbeddedBroker, admin: Admin, topic: str, limited: str
) -> None:
    admin.create_topic(topic, partitions=1)
    options = {"bootstrap.servers": module_broker.bootstrap_servers, "client.id": limited}

    async def write() -> None:
        async with AsyncProducer({**options, "batch.size": "65536"}) as producer:
            await asyncio.gather(*[await producer.send(topic, RECORD) for _ in range(COUNT)])

    async def read() -> None:
        async with AsyncConsumer({**options, "auto.offset.reset": "earliest", "direct.reads": "never"}) as consumer:
            await consumer.assign([(topic, 0)])
            received, stall = 0, Stall("records")
            while received < COUNT:
                stall.check(received)
                received += len(await consumer.poll(500))

    for key, work in (("producer_byte_rate", write), ("consumer_byte_rate", read)):
        began = time.monotonic()
        asyncio.run(work())
        check_rate(COUNT * len(RECORD), began, time.monotonic())
        assert use_of(module_broker, limited, key).throttled_s > 0


def test_a_share_consumer_waits_as_its_quota_wants(
    module_broker: EmbeddedBroker, admin: Admin, topic: str, limited: str
) -> None:
    admin.create_topic(topic, partitions=1)
    with Producer({"bootstrap.servers": module_broker.bootstrap_servers, "batch.size": "65536"}) as producer:
        for each in [producer.send(topic, RECORD) for _ in range(COUNT)]:
            each.result(STALL_S)
    options = {"bootstrap.servers": module_broker.bootstrap_servers, "client.id": limited, "group.id": topic}
    options |= {"fetch.max.bytes": "200000"}  # a response is sent whole, whatever the rate
    began = time.monotonic()
    with ShareConsumer(options) as consumer:
        consumer.subscribe([topic])
        received, stall = 0, Stall("records")
        while received < COUNT:
            stall.check(received)
            received += len(consumer.poll(500))
        check_rate(COUNT * len(RECORD), began, time.monotonic())
    assert use_of(module_broker, limited, "consumer_byte_rate").throttled_s > 0
