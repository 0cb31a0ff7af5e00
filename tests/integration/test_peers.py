"""Tests of calls between real brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Producer
from millrace.config.listeners import Listener
from millrace.errors import BrokerUnavailableError, RequestTimedOutError, UnknownTopicOrPartitionError
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import read_fetch_response
from millrace_broker.network.peers import PeerListener, Peers
from millrace_broker.testing import EmbeddedBroker

from .frame_calls import framing
from .waiting import AN_HOUR_MS, STALL_S, eventually_async

VERSIONS = pb.ApiVersionsRequest()
RECORD_BYTES = 700_000


def broker_one(directory: Path, **options: Any) -> EmbeddedBroker:
    return EmbeddedBroker(directory, broker_id=1, **options)


def with_peers(broker: EmbeddedBroker, work: Any, *, cluster_id: str = "") -> Any:
    """Run ``work(peers)``, which has the broker's address."""

    async def run() -> Any:
        peers = Peers(PeerListener("PLAINTEXT"), cluster_id)
        peers.know(1, broker.server.broker.endpoints)  # under its own broker id, and under another one
        peers.know(2, broker.server.broker.endpoints)
        try:
            return await work(peers)
        finally:
            await peers.close()

    return asyncio.run(run())


def connections(broker: EmbeddedBroker) -> int:
    """Return the number of connections in Kafka's framing."""
    return len(framing(broker.server)._connections)


def fetch(wait_ms: int) -> pb.FetchRequest:
    request = pb.FetchRequest(replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, max_bytes=2**24)
    topic = request.topics.add(name="t")
    topic.partitions.add(partition=0, partition_max_bytes=2**24)
    return request


def test_calls_share_a_connection_one_after_the_other_and_have_their_own_at_a_time(tmp_path: Path) -> None:
    async def work(peers: Peers) -> tuple[int, int]:
        for _ in range(3):
            answer = await peers.call(1, "ApiVersions", VERSIONS, timeout_s=STALL_S)
            assert answer.broker_id == broker.server.broker.config.broker_id
        one = connections(broker)
        await asyncio.gather(*(peers.call(1, "ApiVersions", VERSIONS, timeout_s=STALL_S) for _ in range(4)))
        return one, connections(broker)

    with broker_one(tmp_path) as broker:
        one, several = with_peers(broker, work)
    assert one == 1
    assert 1 < several <= 4


def test_a_large_answer_comes_whole(tmp_path: Path) -> None:
    with broker_one(tmp_path) as broker:
        with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
            admin.create_topic("t", partitions=1)
            producer.send("t", bytes(range(250)) * (RECORD_BYTES // 250)).result()

        async def work(peers: Peers) -> int:
            got = await peers.call(
                1, "Fetch", fetch(0), timeout_s=STALL_S, decode=lambda data: list(read_fetch_response(data))
            )
            return int(got[0].records.size)

        assert with_peers(broker, work) > RECORD_BYTES


def test_a_brokers_error_is_raised_and_the_connection_stays(tmp_path: Path) -> None:
    async def work(peers: Peers) -> int:
        for _ in range(3):
            with pytest.raises(UnknownTopicOrPartitionError):
                await peers.call(1, "LocateRange", pb.LocateRangeRequest(topic="missing"), timeout_s=STALL_S)
        return connections(broker)

    with broker_one(tmp_path) as broker:
        assert with_peers(broker, work) == 1


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_call_after_a_cancelled_one_gets_its_own_answer(tmp_path: Path, is_cancelled: bool) -> None:
    async def work(peers: Peers) -> None:
        parked = asyncio.create_task(peers.call(1, "Fetch", fetch(20_000), timeout_s=STALL_S if is_cancelled else 0.2))
        if is_cancelled:
            await eventually_async(lambda: connections(broker))
            parked.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else RequestTimedOutError):
            await parked
        answer = await peers.call(1, "ApiVersions", VERSIONS, timeout_s=STALL_S)
        assert answer.cluster_id == broker.server.cluster_id

    with broker_one(tmp_path) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=1)
        with_peers(broker, work)


def test_a_broker_that_comes_back_is_reached_again(tmp_path: Path) -> None:
    first = broker_one(tmp_path).start()
    port = first.port

    async def work(peers: Peers) -> None:
        await peers.call(1, "ApiVersions", VERSIONS, timeout_s=STALL_S)
        await asyncio.to_thread(first.stop)
        with pytest.raises(BrokerUnavailableError):
            await peers.call(1, "ApiVersions", VERSIONS, timeout_s=STALL_S)
        second = broker_one(tmp_path, port=port)
        await asyncio.to_thread(second.start)
        try:
            await _until_reached(lambda: peers.call(1, "ApiVersions", VERSIONS, timeout_s=STALL_S))
            assert connections(second) == 1
        finally:
            await asyncio.to_thread(second.stop)

    with_peers(first, work)


def test_an_answer_with_a_goodbye_behind_it_is_an_answer(tmp_path: Path) -> None:
    """A broker that stops sends both at once. TLS gives them to the client at once too."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        hello = pb.HelloResponse(broker_id=1).SerializeToString()
        writer.write(frames.response_head(len(hello), correlation_id=frames.HELLO_ID) + hello)
        await reader.read(4096)
        answer = pb.ApiVersionsResponse(broker_id=7).SerializeToString()
        goodbye = frames.response_head(0, kind=frames.Kind.GOODBYE)
        writer.write(frames.response_head(len(answer)) + answer + goodbye)
        await reader.read()  # the client closes the connection
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()

    async def run() -> int:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        peers = Peers(PeerListener("PLAINTEXT"))
        peers.know(1, {"PLAINTEXT": Listener(*server.sockets[0].getsockname())})
        try:
            return int((await peers.call(1, "ApiVersions", VERSIONS, timeout_s=STALL_S)).broker_id)
        finally:
            await peers.close()
            await ended.wait()
            server.close()

    assert asyncio.run(run()) == 7


async def _until_reached(call: Callable[[], Awaitable[Any]]) -> None:
    async def is_reached() -> bool:
        with contextlib.suppress(BrokerUnavailableError):
            await call()
            return True
        return False

    await eventually_async(is_reached, "the broker to be reached again")


def test_a_broker_is_called_at_the_listener_between_brokers(tmp_path: Path) -> None:
    async def work(peers: Peers) -> str:
        return str((await peers.call(1, "ApiVersions", VERSIONS, timeout_s=STALL_S)).cluster_id)

    async def run(broker: EmbeddedBroker) -> str:
        peers = Peers(PeerListener("INTERNAL"))
        peers.know(1, broker.server.broker.endpoints)
        try:
            return await work(peers)
        finally:
            await peers.close()

    options = {"listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:0"}
    with broker_one(tmp_path / "named", options=options) as named:
        assert asyncio.run(run(named)) == named.server.cluster_id
    with (
        broker_one(tmp_path / "unnamed") as unnamed,
        pytest.raises(BrokerUnavailableError, match=r"no listener INTERNAL.*inter\.broker\.listener\.name"),
    ):
        asyncio.run(run(unnamed))


def test_a_listener_for_grpc_is_no_listener_between_brokers(tmp_path: Path) -> None:
    async def run(broker: EmbeddedBroker) -> None:
        peers = Peers(PeerListener("PLAINTEXT"))
        peers.know(1, {"PLAINTEXT": broker.server.grpc_address})
        try:
            await peers.call(1, "ApiVersions", VERSIONS, timeout_s=STALL_S)
        finally:
            await peers.close()

    with broker_one(tmp_path) as broker, pytest.raises(BrokerUnavailableError, match="listener of another protocol"):
        asyncio.run(run(broker))


@pytest.mark.parametrize(("called", "cluster_id"), [(2, ""), (1, "another")])
def test_a_broker_of_another_id_or_cluster_is_asked_nothing(tmp_path: Path, called: int, cluster_id: str) -> None:
    async def work(peers: Peers) -> None:
        for _ in range(2):
            with pytest.raises(BrokerUnavailableError, match=f"broker 1 of cluster .* where broker {called} should be"):
                await peers.call(called, "CreateTopics", creation, timeout_s=STALL_S)

    creation = pb.CreateTopicsRequest(timeout_ms=AN_HOUR_MS)
    creation.topics.add(name="t", num_partitions=1, replication_factor=1)
    with broker_one(tmp_path) as broker:
        with_peers(broker, work, cluster_id=cluster_id)
        assert "t" not in broker.server.broker.catalog.topics
        with_peers(broker, lambda peers: peers.call(1, "CreateTopics", creation, timeout_s=STALL_S))
        assert "t" in broker.server.broker.catalog.topics


def test_a_broker_of_which_nothing_is_known_is_not_reached(tmp_path: Path) -> None:
    async def work(peers: Peers) -> None:
        with pytest.raises(BrokerUnavailableError, match="broker 3 is not alive"):
            await peers.call(3, "ApiVersions", VERSIONS, timeout_s=STALL_S)

    with broker_one(tmp_path) as broker:
        with_peers(broker, work)
