"""Clients with tokens of an OpenID provider, and their round trip."""

from __future__ import annotations

import asyncio
from typing import Any

import confluent_kafka

from millrace.clients import Admin, Consumer, Producer
from millrace.clients.aio import AsyncProducer

from .kafka_clients import read, send
from .waiting import STALL_S


def millrace_client(address: str, token_endpoint: str, client_id: str, secret: str) -> dict[str, Any]:
    """Return the options of a client of millrace."""
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": token_endpoint,
        "sasl.oauthbearer.client.credentials.client.id": client_id,
        "sasl.oauthbearer.client.credentials.client.secret": secret,
    }


def librdkafka_client(address: str, token_endpoint: str, client_id: str, secret: str) -> dict[str, Any]:
    """Return the options of a client of librdkafka."""
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": client_id,
        "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.token.endpoint.url": token_endpoint,
    }


def round_trip_of_all(options: dict[str, Any], librdkafka: dict[str, Any], topic: str) -> None:
    """Send a record with each client, and read all of them with clients of both kinds."""
    with Admin(options) as admin:
        admin.create_topic(topic)

    async def send_async() -> None:
        async with AsyncProducer(options) as producer:
            await producer.send(topic, b"asyncio")

    asyncio.run(send_async())
    with Producer(options) as producer:
        producer.send(topic, b"millrace").result(STALL_S)
    send(confluent_kafka.Producer(librdkafka), topic, [{"value": b"librdkafka"}])
    reader = confluent_kafka.Consumer({**librdkafka, "group.id": topic, "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    assert [each.value() for each in read(reader, 3)] == [b"asyncio", b"millrace", b"librdkafka"]
    reader.close()
    with Consumer({**options, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        assert consumer.poll(STALL_S * 1000)[0].value == b"asyncio"
