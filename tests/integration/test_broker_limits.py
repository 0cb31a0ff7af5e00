"""Tests of the broker's memory limits for clients, and of its refusals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from millrace import errors
from millrace.kafka_protocol.calls.metadata import MetadataRequest
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.status import ERROR_CODE_KEY, error_from_rpc
from millrace_broker.testing import EmbeddedBroker

from ..certificates import Authority
from .frame_calls import Frames
from .kafka_wire import KafkaWire
from .waiting import STALL_S, eventually


def test_too_large_a_batch_is_refused_and_the_connection_continues(calls: Any, topic: str) -> None:
    calls.create(topic, configs={"max.message.bytes": "1000"})
    refused = calls.produce(topic, calls.batch(b"x" * 2000)).error
    assert refused.code == errors.MessageTooLargeError.code
    assert "max.message.bytes" in refused.message
    assert calls.produce(topic, calls.batch(b"x")).error.code == 0


def test_too_large_a_request_is_refused_and_the_connection_continues(tmp_path: Path, calls_to: Any) -> None:
    options = {"socket.request.max.bytes": 200_000, "message.max.bytes": 100_000}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        with pytest.raises(errors.MessageTooLargeError, match="larger than max"):
            calls.produce("t", calls.batch(b"x" * 500_000))
        assert calls.produce("t", calls.batch(b"x" * 50_000)).error.code == 0


def test_more_requests_than_allowed_are_refused_as_throttled(tmp_path: Path, calls_to: Any) -> None:
    with EmbeddedBroker(tmp_path / "data", options={"queued.max.requests": 3}) as broker:
        first, second = calls_to(broker.bootstrap_servers), calls_to(f"localhost:{broker.port}")
        statistics = broker.server.broker.statistics
        ending = threading.Event()
        produce = first.channel.stream_unary("/millrace.v1.Broker/Produce", lambda each: each, lambda each: each)
        unsent = [produce.future(_nothing_until(ending)) for _ in range(3)]
        eventually(lambda: statistics().admission.requests == 3)
        refused = second.error("Produce", pb.ProduceRequest(acks=1))
        assert isinstance(refused, errors.ThrottledError)
        assert "queued.max.requests" in refused.message
        second.call("ApiVersions", pb.ApiVersionsRequest())
        for future in unsent:
            future.cancel()
        ending.set()
        eventually(lambda: statistics().admission.requests == 0)
        second.call("Produce", pb.ProduceRequest(acks=1))


def _nothing_until(ending: threading.Event) -> Iterator[bytes]:
    """Send a request whose body never arrives."""
    ending.wait()
    yield from ()


def test_more_connections_than_allowed_are_refused_as_throttled(tmp_path: Path, calls_to: Any) -> None:
    with EmbeddedBroker(tmp_path / "data", options={"max.connections": 1}) as broker:
        first = calls_to(broker.bootstrap_servers)
        first.call("ApiVersions", pb.ApiVersionsRequest())
        second = calls_to(f"localhost:{broker.port}")
        refused = second.error("Produce", pb.ProduceRequest(acks=1))
        assert isinstance(refused, errors.ThrottledError)
        assert "max.connections" in refused.message
        second.call("ApiVersions", pb.ApiVersionsRequest())
        first.call("Produce", pb.ProduceRequest(acks=1))


def test_a_client_that_makes_a_call_of_brokers_takes_nothing_from_brokers(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker, Frames(broker) as client:
        client.greet()
        client.sock.sendall(frames.request_head(frames.API_KEYS["WriteTxnMarkers"], 50_000_000))
        statistics = broker.server.broker.statistics
        eventually(lambda: statistics().admission.requests == 1)
        assert statistics().admission.by_class == {"client": 1, "control": 0, "broker": 0}


def test_a_flood_of_large_requests_waits_its_turn_and_all_are_answered(tmp_path: Path, calls_to: Any) -> None:
    with EmbeddedBroker(tmp_path / "data", options={"queued.max.request.bytes": 2_000_000}) as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        data = pb.ProduceRequest.PartitionData(partition=0, records=calls.batch(b"x" * 900_000))
        request = pb.ProduceRequest(acks=-1, topics=[pb.ProduceRequest.TopicData(name="t", partitions=[data])])
        with Frames(broker) as slow:  # its message takes most of the memory until the last byte arrives
            slow.greet()
            message = slow.written("Produce", b"x" * 1_900_000)
            slow.sock.sendall(message[:-1])
            eventually(lambda: broker.server.broker.statistics().admission.bytes_in_use >= 1_900_000)
            futures = [calls.stub.Produce.future(request) for _ in range(40)]
            eventually(lambda: broker.server.broker.statistics().admission.delayed > 0)
            slow.sock.sendall(message[-1:])
        offsets = [future.result().topics[0].partitions[0].base_offset for future in futures]
        assert sorted(offsets) == list(range(40))
        assert calls.fetch("t", 0, max_bytes=2**30, partition_max_bytes=2**30).records
        eventually(lambda: broker.server.broker.statistics().admission.bytes_in_use == 0)


def test_a_fetch_response_is_no_larger_than_the_broker_allows(tmp_path: Path, calls_to: Any) -> None:
    with EmbeddedBroker(tmp_path / "data", options={"fetch.max.bytes": 10_000}) as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        for _ in range(20):
            calls.produce("t", calls.batch(b"x" * 1000))
        fetched = calls.fetch("t", 0, max_bytes=2**30, partition_max_bytes=2**30)
        assert 5_000 < len(fetched.records) <= 10_000


def test_a_failing_call_ends_with_its_number_and_a_status_for_proxies(calls: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        calls.stub.GetSchemas(pb.GetSchemasRequest(ids=[987_654]))
    failed: Any = caught.value
    assert failed.code() is grpc.StatusCode.NOT_FOUND
    assert dict(failed.trailing_metadata())[ERROR_CODE_KEY] == "1003"
    assert isinstance(error_from_rpc(failed), errors.UnknownSchemaError)


def test_an_unforeseen_failure_is_logged_with_its_stack_and_answered_without(
    tmp_path: Path, calls_to: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        calls = calls_to(broker.bootstrap_servers)

        def fail() -> None:
            raise ZeroDivisionError("secret detail")

        monkeypatch.setattr(broker.server.broker.member, "live_brokers", fail)
        refused = calls.error("Metadata", pb.MetadataRequest())
        monkeypatch.undo()
        assert isinstance(refused, errors.UnknownServerError)
        assert "secret" not in refused.message
        assert "unexpected failure in Metadata from 127.0.0.1:" in caplog.text
        assert "ZeroDivisionError" in caplog.text
        calls.call("Metadata", pb.MetadataRequest())


def test_a_body_that_is_no_message_ends_the_call_alone(calls: Any) -> None:
    raw = calls.channel.unary_unary("/millrace.v1.Broker/Produce")
    with pytest.raises(grpc.RpcError):
        raw(b"\xff\xff\xff", timeout=STALL_S)
    calls.call("ApiVersions", pb.ApiVersionsRequest())


def test_connections_of_an_address_beyond_its_limit_are_closed(tmp_path: Path) -> None:
    """Connections in the handshake of TLS count too, and all listeners together."""
    options = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": Authority.make().issue("CN=broker").write(tmp_path / "broker.pem"),
        "max.connections.per.ip": "9",
        "max.connections.per.ip.overrides": "127.0.0.1:2",
    }

    def is_answered() -> bool:
        with KafkaWire(broker.server.ports["PLAINTEXT"]) as wire:
            try:
                return bool(wire.call(MetadataRequest(topics=()), 1).brokers)
            except (ConnectionError, EOFError):
                return False

    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        counts = broker.server.broker.admission.addresses._counts
        assert is_answered()
        eventually(lambda: not counts, "the broker to see the end of the connection")
        with KafkaWire(broker.server.ports["SSL"]) as handshake, KafkaWire(broker.server.ports["PLAINTEXT"]) as other:
            assert other.call(MetadataRequest(topics=()), 1).brokers
            eventually(lambda: counts.total() == 2, "the broker to accept the connection of the handshake")
            assert not is_answered()
            handshake.sock.close()
            eventually(is_answered, "the place of the failed handshake to be free")
        eventually(lambda: not counts, "all places to be free")
