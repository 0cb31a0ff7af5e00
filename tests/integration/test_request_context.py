"""Tests of the request context of each listener.

The context has the principal, the listener, the client id and the client's address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, Producer, ShareConsumer
from millrace.clients.aio import AsyncConsumer
from millrace.config.listeners import Listener
from millrace.errors import GroupIdNotFoundError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker import api
from millrace_broker.api import RequestContext
from millrace_broker.listeners import grpc_server
from millrace_broker.listeners.shared import UNARY_METHODS
from millrace_broker.network.peers import PeerListener, Peers
from millrace_broker.security import KafkaPrincipal
from millrace_broker.testing import EmbeddedBroker

from .consumer_groups import QUICK, QUICK_GROUPS
from .frame_calls import Frames
from .waiting import STALL_S, eventually

LISTENERS = {"auto": "PLAINTEXT", "grpc": "GRPC"}
"""Listeners by the clients' option ``transport``."""
STRANGE_ID = "grün grpc-java/1.5 of team a"


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[RequestContext]:
    """Record the contexts of all calls of handlers from now on. The handlers do their work as always."""
    seen: list[RequestContext] = []

    def recorded(handler: Any) -> Any:
        async def handle(broker: Any, request: Any, context: RequestContext) -> Any:
            seen.append(context)
            return await handler(broker, request, context)

        return handle

    def recorded_stream(handler: Any) -> Any:
        async def handle(broker: Any, request: Any, context: RequestContext) -> AsyncIterator[Any]:
            seen.append(context)
            async for response in handler(broker, request, context):
                yield response

        return handle

    for name, method in list(UNARY_METHODS.items()):
        monkeypatch.setitem(UNARY_METHODS, name, method._replace(handler=recorded(method.handler)))
    for each, stream_handler in list(api.STREAM_HANDLERS.items()):
        monkeypatch.setitem(grpc_server.STREAM_HANDLERS, each, recorded_stream(stream_handler))
    return seen


@pytest.fixture
def broker(tmp_path: Path, contexts: list[RequestContext]) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "data", broker_id=1, options=QUICK_GROUPS) as running:
        yield running


def check(context: RequestContext, *, listener: str, client_id: str) -> None:
    assert context.principal == KafkaPrincipal("User", "ANONYMOUS")
    assert str(context.principal) == "User:ANONYMOUS"
    assert context.listener_name == listener
    assert context.client_id == client_id
    assert context.client_address.host == "127.0.0.1"
    assert context.client_address.port > 0


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_handlers_get_the_client_id_of_every_kind_of_client(
    broker: EmbeddedBroker, contexts: list[RequestContext], transport: str
) -> None:
    def config(client_id: str, **options: str) -> dict[str, Any]:
        named = {name.replace("_", "."): value for name, value in options.items()}
        servers = broker.bootstrap_servers
        return {"bootstrap.servers": servers, "client.id": client_id, "transport": transport, **named}

    with Admin(config("administrator")) as admin:
        admin.create_topic("t", partitions=1)
        with Producer(config("producer of t")) as producer:
            producer.send("t", b"value").result(STALL_S)
        group = {**QUICK, **config(STRANGE_ID, group_id="g")}
        with Consumer(group) as consumer:
            consumer.subscribe("t")
            eventually(lambda: bool(list(consumer.poll(0.1))), "a record to arrive")
            (member,) = admin.describe_group("g").members
        with ShareConsumer(config("sharer", group_id="s")) as sharer:
            sharer.subscribe("t")

            def is_member() -> bool:
                sharer.poll(0.1)
                with suppress(GroupIdNotFoundError):
                    return bool(admin.describe_group("s").members)
                return False

            eventually(is_member, "the share group to have a member")
            (share_member,) = admin.describe_group("s").members
    assert (member.client_id, member.host) == (STRANGE_ID, "/127.0.0.1")
    assert member.member_id.startswith(f"{STRANGE_ID}-")
    assert (share_member.client_id, share_member.host) == ("sharer", "/127.0.0.1")

    names = {
        "administrator": {"CreateTopics", "DescribeGroups"},
        "producer of t": {"InitProducerId", "Produce"},
        STRANGE_ID: {"JoinGroup", "SyncGroup", "Fetch", "LeaveGroup"},
        "sharer": {"ShareGroupHeartbeat", "FindCoordinator"},
    }
    for context in contexts:
        check(context, listener=LISTENERS[transport], client_id=context.client_id)
        assert context.client_id in names
    for client_id, calls in names.items():
        made = {context.api_name for context in contexts if context.client_id == client_id}
        assert calls <= made, f"{client_id} made {made}"


def test_handlers_get_the_client_id_of_an_asyncio_client(
    broker: EmbeddedBroker, contexts: list[RequestContext]
) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("t", partitions=1)

    async def work() -> None:
        async with AsyncConsumer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "loop"}) as consumer:
            await consumer.partitions_for("t")

    asyncio.run(work())
    check(contexts[-1], listener="PLAINTEXT", client_id="loop")


def test_handlers_of_streams_get_the_context_of_the_call(
    broker: EmbeddedBroker, contexts: list[RequestContext], calls_to: Any
) -> None:
    calls = calls_to(broker.bootstrap_servers)
    calls.create("t")
    calls.produce("t", calls.batch(b"1"))
    request = pb.ReadRangeRequest(topic="t", start_offset=0, end_offset=1)
    assert list(calls.stub.ReadRange(request, timeout=STALL_S))
    check(contexts[-1], listener="GRPC", client_id="")
    assert contexts[-1].api_name == "ReadRange"


def test_two_connections_for_frames_keep_their_own_contexts(
    broker: EmbeddedBroker, contexts: list[RequestContext]
) -> None:
    with Frames(broker) as first, Frames(broker) as second:
        for connection, client_id in ((first, "first"), (second, "second")):
            connection.greet(client_id)
        for connection, client_id in ((first, "first"), (second, "second"), (first, "first")):
            connection.call("ApiVersions", b"")
            check(contexts[-1], listener="PLAINTEXT", client_id=client_id)
            assert tuple(contexts[-1].client_address) == connection.sock.getsockname()


def test_another_broker_is_a_client_with_the_id_of_that_broker(tmp_path: Path, contexts: list[RequestContext]) -> None:
    async def work(endpoints: Mapping[str, Listener]) -> None:
        peers = Peers(PeerListener("PLAINTEXT"), client_id="broker-7")
        peers.know(1, endpoints)
        try:
            await peers.call(1, "Metadata", pb.MetadataRequest(), timeout_s=STALL_S)
        finally:
            await peers.close()

    with EmbeddedBroker(tmp_path / "data", broker_id=1) as broker:
        asyncio.run(work(broker.server.broker.endpoints))
    assert {context.client_id for context in contexts} == {"broker-7"}
    check(contexts[-1], listener="PLAINTEXT", client_id="broker-7")
