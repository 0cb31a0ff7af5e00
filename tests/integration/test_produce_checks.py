"""Tests of the verification of produced batches, once for each client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.clients import Producer
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import create_topic, producer, send
from .waiting import STALL_S

LARGE = b"v" * 800_000


def send_with_millrace(broker: EmbeddedBroker, topic: str, value: bytes, transport: str) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "transport": transport}) as client:
        client.send(topic, value=value).result(STALL_S)


@pytest.mark.parametrize("transport", ["auto", "grpc"])
@pytest.mark.parametrize("value", [b"v", LARGE])
def test_a_batch_of_millrace_is_verified_once(
    module_broker: EmbeddedBroker, topic: str, verified: list[int], transport: str, value: bytes
) -> None:
    create_topic(module_broker, topic)
    for _ in range(2):  # the first append needs a new file, and runs in a thread
        send_with_millrace(module_broker, topic, value, transport)
    assert verified == [0, 0]


@pytest.mark.parametrize("options", [{}, {"compression_type": "lz4"}, {"acks": "1", "enable_idempotence": False}])
def test_a_batch_of_kafka_is_verified_once(
    module_broker: EmbeddedBroker, topic: str, verified: list[int], options: dict[str, Any]
) -> None:
    create_topic(module_broker, topic)
    client = producer(module_broker, **options)
    for _ in range(2):
        send(client, topic, [{"value": b"v" * 100}])
    assert verified == [0, 0]


def test_a_recompressed_batch_is_verified_as_another_one(
    module_broker: EmbeddedBroker, topic: str, verified: list[int]
) -> None:
    create_topic(module_broker, topic, compression_type="gzip")
    send(producer(module_broker), topic, [{"value": b"v" * 100}])
    assert verified == [0, 0]


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_damaged_batch_is_refused_before_the_log(
    calls: Any, topic: str, verified: list[int], flipped: Callable[[bytes], bytes], damaged: int
) -> None:
    calls.create(topic)
    sent = [calls.batch(b"one"), calls.batch(b"two")]
    sent[damaged] = flipped(sent[damaged])
    result = calls.produce(topic, b"".join(sent))
    assert "fails its checksum" in result.error.message
    assert len(verified) == damaged + 1
    assert calls.offset(topic, -1).offset == 0


@pytest.fixture
def flipped() -> Callable[[bytes], bytes]:
    return lambda batch: batch[:-1] + bytes([batch[-1] ^ 1])
