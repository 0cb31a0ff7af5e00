"""Tests of the broker's frame port.

The tests cover answers, refusals, and protection against misbehaving clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace import errors
from millrace.clients import Admin, Producer
from millrace.config.broker import BrokerConfig
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import read_fetch_response
from millrace_broker.api import HANDLERS
from millrace_broker.listeners.shared import UNARY_METHODS
from millrace_broker.server import BrokerServer
from millrace_broker.testing import EmbeddedBroker

from .frame_calls import Frames
from .waiting import AN_HOUR_MS, STALL_S, eventually


@pytest.fixture
def connection(module_broker: EmbeddedBroker) -> Iterator[Frames]:
    with Frames(module_broker) as opened:
        opened.greet()
        yield opened


def _limits(broker: EmbeddedBroker) -> Any:
    return broker.server.broker.statistics().admission


def test_a_filter_of_quotas_of_an_unknown_kind_is_refused(connection: Frames) -> None:
    unknown: Any = 7
    wanted = pb.DescribeClientQuotasRequest.Filter(type="user", match=unknown)
    with pytest.raises(errors.InvalidRequestError, match="7 is not a valid Match"):
        connection.call("DescribeClientQuotas", pb.DescribeClientQuotasRequest(filters=[wanted]))


def test_a_greeting_names_the_broker(module_broker: EmbeddedBroker, calls: Any) -> None:
    asked = calls.call("ApiVersions", pb.ApiVersionsRequest())
    with Frames(module_broker) as opened:
        answer = opened.greet()
    assert (answer.broker_id, answer.cluster_id) == (asked.broker_id, asked.cluster_id)
    assert list(answer.endpoints) == list(asked.endpoints)
    assert {(each.listener, each.protocol, f"{each.host}:{each.port}") for each in answer.endpoints} == {
        ("PLAINTEXT", "kafka", module_broker.bootstrap_servers),
        ("GRPC", "grpc", module_broker.grpc_address),
    }
    assert answer.cluster_id
    assert answer.request_bytes_max > 100_000_000
    assert answer.idle_ms_max == 600_000


_ASKED_FOR_NOTHING = sorted(set(HANDLERS) - {"ApiVersions"})


@pytest.mark.parametrize("name", _ASKED_FOR_NOTHING)
def test_every_call_is_answered_as_over_grpc(connection: Frames, calls: Any, name: str) -> None:
    """Send an empty request of each call. The answer, or the error and its text, is the same."""
    method = UNARY_METHODS[name.encode()]
    outcomes = []
    for call in (lambda: calls.call(name, method.request()).SerializeToString(), lambda: connection.call(name, b"")):
        try:
            outcomes.append(call())
        except errors.MillraceError as error:
            outcomes.append((type(error), error.message))
    if name == "Metadata":  # it has the ports of the listener
        answers = [pb.MetadataResponse.FromString(outcome) for outcome in outcomes]
        grpc_port = int(calls.address.rpartition(":")[2])
        assert [each.brokers[0].port for each in answers] == [grpc_port, connection.sock.getpeername()[1]]
        for answer in answers:
            answer.brokers[0].ClearField("port")
        outcomes = answers
    if name in ("InitProducerId", "JoinGroup"):  # these give new ids
        assert type(outcomes[0]) is type(outcomes[1])
    else:
        assert outcomes[0] == outcomes[1]


def test_a_call_that_the_broker_does_not_know_is_of_another_version(connection: Frames) -> None:
    with pytest.raises(errors.UnsupportedVersionError, match="does not support call 30000"):
        connection.call("Levitate", b"")
    assert pb.ApiVersionsResponse.FromString(connection.call("ApiVersions", b"")).protocol_version == 1


def test_a_malformed_message_is_refused_and_the_connection_continues(connection: Frames) -> None:
    with pytest.raises(errors.InvalidRequestError, match="invalid Fetch request"):
        connection.call("Fetch", b"\xff\xff\xff")
    connection.call("ApiVersions", b"")


def test_requests_that_come_together_are_answered_in_turn(connection: Frames, calls: Any, topic: str) -> None:
    calls.create(topic)
    waiting = calls.fetch_request({topic: {0: 0}}, max_wait_ms=50)
    written = [connection.written("ApiVersions", b""), connection.written("Fetch", waiting)]
    connection.sock.sendall(b"".join(written * 100))
    for number in range(200):
        answer = connection.receive()
        if number % 2 == 0:
            assert pb.ApiVersionsResponse.FromString(answer).protocol_version == 1
        else:
            assert next(read_fetch_response(answer)).topic == topic


def test_a_request_may_come_byte_by_byte(connection: Frames, calls: Any, topic: str) -> None:
    calls.create(topic)
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in connection.written("Metadata", pb.MetadataRequest(topics=[topic])):
        connection.sock.sendall(bytes([byte]))
    answer = pb.MetadataResponse.FromString(connection.receive())
    assert [each.name for each in answer.topics] == [topic]


def test_large_messages_go_both_ways(connection: Frames, calls: Any, topic: str) -> None:
    calls.create(topic, configs={"max.message.bytes": "60000000"})
    value = random.Random(5).randbytes(20_000_000)
    batch = calls.batch(value)
    data = pb.ProduceRequest.PartitionData(partition=0, records=batch)
    request = pb.ProduceRequest(acks=-1, topics=[pb.ProduceRequest.TopicData(name=topic, partitions=[data])])
    answer = pb.ProduceResponse.FromString(connection.call("Produce", request))
    assert answer.topics[0].partitions[0].error.code == 0
    fetched = connection.call("Fetch", calls.fetch_request({topic: {0: 0}}))
    assert next(read_fetch_response(fetched)).records.to_pybytes()[61:] == batch[61:]


# --- limits ---------------------------------------------------------------------------------------------------------


def test_too_large_a_request_is_refused_before_it_is_received(tmp_path: Path) -> None:
    with (
        EmbeddedBroker(tmp_path / "data", socket_request_max_bytes=200_000, message_max_bytes=100_000) as broker,
        Frames(broker) as opened,
    ):
        opened.greet()
        opened.sock.sendall(frames.request_head(frames.API_KEYS["Produce"], 2**30))
        with pytest.raises(errors.MessageTooLargeError, match=r"larger than max .*socket\.request\.max\.bytes"):
            opened.receive()
        opened.sock.sendall(b"x" * 100_000)  # data in flight is discarded
        eventually(lambda: opened.is_closed)
        assert _limits(broker).bytes_in_use == 0


def test_a_client_knows_what_is_too_large_and_its_connection_continues(tmp_path: Path) -> None:
    options = {"socket.request.max.bytes": 200_000, "message.max.bytes": 100_000}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=1)
        with Producer(broker.bootstrap_servers) as producer:
            assert isinstance(producer.send("t", b"x" * 500_000).exception(STALL_S), errors.MessageTooLargeError)
            assert producer.send("t", b"x" * 50_000).result(STALL_S).offset == 0


def test_more_requests_than_allowed_are_refused_as_throttled(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", queued_max_requests=2) as broker:
        opened = [Frames(broker) for _ in range(3)]
        for each in opened:
            each.greet()
        for each in opened[:2]:  # a request that is being received is in progress
            each.sock.sendall(each.written("Produce", b"x" * 1000)[:-1])
        eventually(lambda: _limits(broker).requests == 2)
        with pytest.raises(errors.ThrottledError, match=r"queued\.max\.requests"):
            opened[2].call("Produce", b"")
        with pytest.raises(errors.ThrottledError):  # also if most of the message has not arrived yet
            opened[2].call("Produce", b"x" * 900_000)
        opened[2].call("ApiVersions", b"")
        opened[0].close()
        eventually(lambda: _limits(broker).requests == 1)
        assert pb.ProduceResponse.FromString(opened[2].call("Produce", pb.ProduceRequest(acks=1))) is not None
        for each in opened:
            each.close()
        eventually(lambda: _limits(broker).requests == 0)


def test_bodies_wait_for_memory_in_their_senders(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", control_queued_max_request_bytes=1_000_000) as broker:
        slow, quick = Frames(broker), Frames(broker)
        for each in (slow, quick):
            each.greet()
        request = slow.written("Metadata", pb.MetadataRequest(topics=["x" * 900_000]))
        slow.sock.sendall(request[:500_000])
        eventually(lambda: _limits(broker).bytes_in_use > 900_000)
        sender = threading.Thread(target=quick.sock.sendall, args=(request,))
        sender.start()
        eventually(lambda: _limits(broker).delayed == 1)
        assert _limits(broker).bytes_in_use < 1_000_000
        slow.sock.sendall(request[500_000:])
        for each in (slow, quick):
            assert pb.MetadataResponse.FromString(each.receive()).topics[0].error.code
        sender.join(STALL_S)
        for each in (slow, quick):
            each.close()
        eventually(lambda: _limits(broker).bytes_in_use == 0)


def test_connections_are_limited_and_idle_ones_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_broker.listeners.tcp_listener.ACTIVE_CONNECTION_S", 3600.0)
    monkeypatch.setattr("millrace_broker.listeners.tcp_listener._RESERVED_S", 3600.0)
    with EmbeddedBroker(tmp_path / "data", max_connections=2, control_max_connections=1) as broker:
        first, second, reserve = Frames(broker), Frames(broker), Frames(broker)
        for each in (first, second, reserve):
            each.greet()
        with Frames(broker) as refused, pytest.raises(errors.ThrottledError, match=r"max\.connections"):
            refused.greet()
        second.call("ApiVersions", b"")  # the first connection is idle for longer
        monkeypatch.setattr("millrace_broker.listeners.tcp_listener.ACTIVE_CONNECTION_S", 0.0)
        with Frames(broker) as fourth:
            fourth.greet()
            assert first.head().kind is frames.Kind.GOODBYE
            second.call("ApiVersions", b"")
            assert _limits(broker).connections == 3
        for each in (first, second, reserve):
            each.close()
        eventually(lambda: _limits(broker).connections == 0)


def test_a_connection_of_the_reserve_is_for_control_until_a_place_is_free(tmp_path: Path) -> None:
    produce = pb.ProduceRequest(acks=1)
    with EmbeddedBroker(tmp_path / "data", max_connections=1, control_max_connections=1) as broker:
        client, operator = Frames(broker), Frames(broker)
        client.greet()
        operator.greet()
        operator.call("ListGroups", pb.ListGroupsRequest())
        operator.call("Metadata", pb.MetadataRequest())
        client.close()
        eventually(lambda: _limits(broker).connections == 1)
        operator.call("Produce", produce)
        with Frames(broker) as third:
            third.greet()
            with pytest.raises(errors.ThrottledError, match=r"max\.connections"):
                third.call("Produce", produce)
            assert third.head().kind is frames.Kind.GOODBYE, "the call does not keep a place of the reserve"
        operator.close()


# --- misbehaving clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "another protocol, HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "another protocol, gRPC"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), "another protocol, TLS"),
        (bytes(64), "cannot hold a header"),
        (b"\xff" * 64, "cannot hold a header"),
        (b"\x7f" * 64, "socket.request.max.bytes"),
        (struct.pack(">ihhi", 100, 999, 0, 1), "API key 999 is no call"),
        (struct.pack(">ihhi", 100, frames.API_KEYS["Fetch"], 1, 1), "is HELLO"),
    ],
)
def test_a_connection_of_another_protocol_is_closed_with_one_line_in_the_log(
    module_broker: EmbeddedBroker, garbage: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Frames(module_broker) as opened:
        opened.sock.sendall(garbage)
        eventually(lambda: opened.is_closed)
    (line,) = [record.message for record in caplog.records if "is closed" in record.message]
    assert reason in line


def test_garbage_affects_no_other_connection(module_broker: EmbeddedBroker, connection: Frames) -> None:
    chance = random.Random(11)
    for number in range(60):
        with Frames(module_broker) as opened:
            if number % 2:
                opened.greet()
            opened.sock.sendall(chance.randbytes(chance.randrange(1, 3000)))
            if number % 3 == 0:
                opened.sock.shutdown(socket.SHUT_WR)
    connection.call("ApiVersions", b"")
    eventually(lambda: _limits(module_broker).bytes_in_use == 0)


@pytest.mark.parametrize("begun", ["nothing", "head", "body"])
def test_a_client_that_stops_in_the_middle_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str, caplog: pytest.LogCaptureFixture
) -> None:
    from millrace_broker.listeners import connection as connections

    caplog.set_level(logging.INFO)
    for state in list(connections.LIMITS_S):
        monkeypatch.setitem(connections.LIMITS_S, state, 0.3)
    with EmbeddedBroker(tmp_path / "data") as broker, Frames(broker) as opened:
        if begun != "nothing":
            opened.greet()
            request = opened.written("Metadata", pb.MetadataRequest(topics=["x" * 500_000]))
            opened.sock.sendall(request[: 5 if begun == "head" else 300_000])
        eventually(lambda: opened.is_closed)
        eventually(lambda: _limits(broker).bytes_in_use == 0)
        assert _limits(broker).requests == 0
    assert "took too long" in caplog.text


def test_a_client_that_does_not_read_its_answer_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls_to: Any
) -> None:
    from millrace_broker.listeners import connection as connections

    monkeypatch.setitem(connections.LIMITS_S, connections.State.SENDING, 0.3)
    with EmbeddedBroker(tmp_path / "data", message_max_bytes=40_000_000) as broker, Frames(broker) as opened:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        calls.produce("t", calls.batch(bytes(30_000_000)))
        opened.greet()
        opened.send("Fetch", calls.fetch_request({"t": {0: 0}}))
        eventually(lambda: _limits(broker).bytes_in_use > 10_000_000)
        eventually(lambda: _limits(broker).bytes_in_use == 0)
        eventually(lambda: opened.is_closed)


def test_idle_connections_are_closed_with_a_goodbye(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", connections_max_idle_ms=1000) as broker, Frames(broker) as opened:
        opened.greet()
        opened.call("ApiVersions", b"")
        assert opened.head().kind is frames.Kind.GOODBYE
        eventually(lambda: opened.is_closed)


def test_a_call_whose_connection_is_lost_is_cancelled(module_broker: EmbeddedBroker, calls: Any, topic: str) -> None:
    calls.create(topic)
    before = _limits(module_broker).parked
    with Frames(module_broker) as opened:
        opened.greet()
        opened.send("Fetch", calls.fetch_request({topic: {0: 0}}, max_wait_ms=60_000))
        eventually(lambda: _limits(module_broker).parked == before + 1)
    eventually(lambda: _limits(module_broker).parked == before)


def test_a_call_whose_deadline_has_passed_is_cancelled(connection: Frames, calls: Any, topic: str) -> None:
    calls.create(topic)
    connection.send("Fetch", calls.fetch_request({topic: {0: 0}}, max_wait_ms=60_000), deadline_ms=100)
    with pytest.raises(errors.RequestTimedOutError, match="deadline passed"):
        connection.receive()
    connection.call("ApiVersions", b"")


def test_stopping_lets_calls_end_and_says_goodbye(tmp_path: Path, calls_to: Any) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker, Frames(broker) as idle, Frames(broker) as waiting:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        for each in (idle, waiting):
            each.greet()
        waiting.send("Fetch", calls.fetch_request({"t": {0: 0}}, max_wait_ms=AN_HOUR_MS))
        eventually(lambda: _limits(broker).parked == 1)
        broker.stop()
        assert idle.head().kind is frames.Kind.GOODBYE
        assert next(read_fetch_response(waiting.receive())).records.size == 0  # arrivals end when the broker stops
        assert waiting.head().kind is frames.Kind.GOODBYE


@pytest.mark.parametrize("turns", range(4))
def test_a_connection_accepted_while_the_listener_stops_is_closed(tmp_path: Path, turns: int) -> None:
    """A client connects some turns of the event loop before the listener stops. Its socket is not leaked."""

    async def connect_and_stop() -> bytes:
        server = BrokerServer(BrokerConfig.load({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}))
        await server.start()
        with socket.create_connection(("127.0.0.1", server.port), STALL_S) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.listeners.by_name["PLAINTEXT"].stop(grace_s=1)
            await server.stop()
            with contextlib.suppress(ConnectionResetError):
                return client.recv(1)
        return b""

    assert asyncio.run(connect_and_stop()) == b""
