"""Tests of requests that stop in the middle.

Such requests are dropped in favour of other calls, and only of these.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace import errors
from millrace.kafka_protocol.calls.produce import ProduceRequest
from millrace.kafka_protocol.calls.table import ApiKey
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.status import error_from_rpc
from millrace_broker.listeners import grpc_server
from millrace_broker.listeners.connection import Connection
from millrace_broker.listeners.connection_states import LIMITS_S, State
from millrace_broker.metrics import metrics_of
from millrace_broker.quotas import AdmissionStatistics, receptions
from millrace_broker.testing import EmbeddedBroker

from .frame_calls import Frames, framing
from .kafka_wire import KafkaWire, written
from .waiting import AN_HOUR_MS, STALL_S, eventually

_MEMORY_BYTES = 4_000_000
_LARGE_BYTES = 1_900_000


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stalled requests give way soon, and end none of them by the limit of a reception."""
    monkeypatch.setattr(receptions, "GIVE_WAY_S", 0.5)
    monkeypatch.setattr(grpc_server, "RECEPTION_TIMEOUT_S", AN_HOUR_MS / 1000)
    monkeypatch.setitem(LIMITS_S, State.RECEIVING, AN_HOUR_MS / 1000)


def _admission(broker: EmbeddedBroker) -> AdmissionStatistics:
    return broker.server.broker.statistics().admission


def _produce(calls: Any, records: bytes) -> pb.ProduceRequest:
    data = pb.ProduceRequest.PartitionData(partition=0, records=calls.batch(records))
    return pb.ProduceRequest(acks=-1, topics=[pb.ProduceRequest.TopicData(name="t", partitions=[data])])


def _stalled(opened: contextlib.ExitStack, broker: EmbeddedBroker, size_bytes: int, sent: bytes = b"") -> Frames:
    """Open a connection that sends the head of a request, and at most a part of its content."""
    each = opened.enter_context(Frames(broker))
    each.greet("sleepy")
    each.sock.sendall(frames.request_head(frames.API_KEYS["Produce"], size_bytes) + sent)
    return each


def _stalled_kafka(opened: contextlib.ExitStack, broker: EmbeddedBroker, size_bytes: int) -> KafkaWire:
    each = opened.enter_context(KafkaWire(broker))
    each.sock.sendall(struct.pack(">ihhi", size_bytes, ApiKey.PRODUCE, 9, 1))
    return each


@pytest.mark.parametrize("sent_bytes", [0, 100_000])
def test_a_produce_is_answered_beside_stalled_requests_that_want_all_memory(
    tmp_path: Path, calls_to: Callable[[str], Any], caplog: pytest.LogCaptureFixture, sent_bytes: int
) -> None:
    options = {"queued.max.request.bytes": _MEMORY_BYTES}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, contextlib.ExitStack() as opened:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        with Frames(broker, timeout_s=STALL_S) as client:
            client.greet()
            for _ in range(40):
                _stalled(opened, broker, _LARGE_BYTES, bytes(sent_bytes))
            eventually(lambda: _admission(broker).delayed > 0)
            for size in (10, 900_000, 500_000):
                answer = pb.ProduceResponse.FromString(client.call("Produce", _produce(calls, bytes(size))))
                assert not answer.topics[0].partitions[0].HasField("error")
            opened.close()
        eventually(lambda: _admission(broker).bytes_in_use == 0)
        assert _admission(broker).requests == 0
        gave_way = _admission(broker).gave_way
    lines = [each.message for each in caplog.records if "gives way" in each.message]
    assert lines
    assert gave_way == len(lines)
    assert all(line.startswith("Produce of User:ANONYMOUS (client id 'sleepy') at 127.0.0.1:") for line in lines)
    assert " bytes have arrived, too few of them in the last " in lines[0]


def test_the_client_of_a_kafka_request_that_gives_way_is_named_and_the_request_is_counted(
    tmp_path: Path, calls_to: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        EmbeddedBroker(tmp_path / "data", options={"queued.max.requests": 1}) as broker,
        KafkaWire(broker) as named,
        KafkaWire(broker) as unnamed,
    ):
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        request = written(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=()), 8, client_id="sleepy")
        for stalled, sent in ((named, request[:-1]), (unnamed, request[:12])):
            stalled.sock.sendall(sent)
            eventually(lambda: _admission(broker).requests == 1)
            eventually(lambda: _is_answered(calls, _produce(calls, b"x")))
        metrics = {each.name: each for each in metrics_of(broker.server.broker.statistics())}
        assert metrics["millrace_requests_gave_way"].samples[0].value == 2
    lines = [each.message for each in caplog.records if "gives way" in each.message]
    assert [line.partition(" at ")[0] for line in lines] == [
        "Produce of User:ANONYMOUS (client id 'sleepy')",
        "Produce of User:ANONYMOUS (client id '')",
    ]


def test_a_request_that_gives_way_is_answered_as_throttled(tmp_path: Path, calls_to: Callable[[str], Any]) -> None:
    options = {"queued.max.request.bytes": _MEMORY_BYTES}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, contextlib.ExitStack() as opened:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        first = _stalled(opened, broker, _LARGE_BYTES, bytes(1_500_000))
        eventually(lambda: _admission(broker).bytes_in_use >= _LARGE_BYTES)
        _stalled(opened, broker, _LARGE_BYTES, bytes(1_500_000))
        eventually(lambda: _admission(broker).bytes_in_use >= 2 * _LARGE_BYTES)
        assert calls.produce("t", calls.batch(bytes(900_000))).base_offset == 0
        with pytest.raises(errors.ThrottledError, match="while other requests wait"):
            first.receive()
        eventually(lambda: first.is_closed)


@pytest.mark.parametrize("protocol", ["millrace", "kafka", "grpc"])
def test_a_produce_gets_a_place_of_requests_without_content(
    tmp_path: Path, calls_to: Callable[[str], Any], protocol: str
) -> None:
    ending = threading.Event()
    with (
        EmbeddedBroker(tmp_path / "data", options={"queued.max.requests": 3}) as broker,
        contextlib.ExitStack() as opened,
    ):
        opened.callback(ending.set)
        calls, other = calls_to(broker.bootstrap_servers), calls_to(broker.bootstrap_servers)
        calls.create("t")
        futures = []
        for _ in range(3):
            if protocol == "kafka":
                _stalled_kafka(opened, broker, 1_000_000)
            elif protocol == "millrace":
                _stalled(opened, broker, 1_000_000)
            else:
                produce = other.channel.stream_unary("/millrace.v1.Broker/Produce", bytes, bytes)
                futures.append(produce.future(_nothing_until(ending)))
        eventually(lambda: _admission(broker).requests == 3)
        request = _produce(calls, b"x")
        eventually(lambda: _is_answered(calls, request))
        assert _admission(broker).requests == 2, "no more requests gave way than needed"
        if protocol == "grpc":
            eventually(lambda: any(each.done() for each in futures))
            failed: Any = next(each for each in futures if each.done()).exception()
            assert isinstance(error_from_rpc(failed), errors.ThrottledError)


def _nothing_until(ending: threading.Event) -> Iterator[bytes]:
    ending.wait()
    yield from ()


def _is_answered(calls: Any, request: pb.ProduceRequest) -> bool:
    try:
        answer = calls.call("Produce", request)
    except errors.ThrottledError:
        return False
    return not answer.topics[0].partitions[0].HasField("error")


def test_grpc_calls_without_bodies_take_no_memory_of_other_requests(
    tmp_path: Path, calls_to: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receptions, "GIVE_WAY_S", AN_HOUR_MS / 1000)
    ending = threading.Event()
    options = {"queued.max.request.bytes": _MEMORY_BYTES}
    with (
        EmbeddedBroker(tmp_path / "data", options=options) as broker,
        contextlib.ExitStack() as opened,
        Frames(broker, timeout_s=STALL_S) as client,
    ):
        opened.callback(ending.set)
        calls, other = calls_to(broker.bootstrap_servers), calls_to(broker.bootstrap_servers)
        calls.create("t")
        client.greet()
        produce = other.channel.stream_unary("/millrace.v1.Broker/Produce", bytes, bytes)
        futures = [produce.future(_nothing_until(ending)) for _ in range(12)]
        eventually(lambda: _admission(broker).delayed >= 8)
        answer = pb.ProduceResponse.FromString(client.call("Produce", _produce(calls, bytes(900_000))))
        assert not answer.topics[0].partitions[0].HasField("error")
        assert not any(each.done() for each in futures)


def test_grpc_calls_without_bodies_give_memory_way(tmp_path: Path, calls_to: Callable[[str], Any]) -> None:
    ending = threading.Event()
    options = {"queued.max.request.bytes": _MEMORY_BYTES}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, contextlib.ExitStack() as opened:
        opened.callback(ending.set)
        calls, other = calls_to(broker.bootstrap_servers), calls_to(broker.bootstrap_servers)
        calls.create("t")
        produce = other.channel.stream_unary("/millrace.v1.Broker/Produce", bytes, bytes)
        futures = [produce.future(_nothing_until(ending)) for _ in range(12)]
        eventually(
            lambda: _admission(broker).delayed >= 8
        )  # the estimate of a body is an eighth of the memory, and half of it is for gRPC
        assert calls.produce("t", calls.batch(b"x")).base_offset == 0
        assert any(each.done() for each in futures)


def test_a_slow_request_is_not_ended_while_it_progresses_and_none_waits(
    tmp_path: Path, calls_to: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receptions, "GIVE_WAY_S", 0.0)
    monkeypatch.setitem(LIMITS_S, State.RECEIVING, 60.0)
    with EmbeddedBroker(tmp_path / "data") as broker, Frames(broker) as slow:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        slow.greet()
        message = slow.written("Produce", _produce(calls, bytes(900_000)))
        (connection,) = framing(broker.server)._connections
        _in_loop(broker, lambda: framing(broker.server)._checking.cancel())  # type: ignore[union-attr]
        began = _in_loop(broker, broker._loop.time)

        def arrive(position: int, at_s: float) -> None:
            slow.sock.sendall(message[position - 100_000 : position])
            eventually(lambda: _arrived(connection) == position - frames.HEAD_BYTES)
            _in_loop(broker, lambda: connection.check(began + at_s))

        for number in range(1, 9):
            arrive(100_000 * number, 50.0 * number)
        assert calls.produce("t", calls.batch(b"x")).base_offset == 0
        slow.sock.sendall(message[800_000:])
        assert not pb.ProduceResponse.FromString(slow.receive()).topics[0].partitions[0].HasField("error")
        slow.sock.sendall(message[:-1])
        eventually(lambda: _arrived(connection) == len(message) - 1 - frames.HEAD_BYTES)
        _in_loop(broker, lambda: connection.check(began + 500.0))
        _in_loop(broker, lambda: connection.check(began + 561.0))
        eventually(lambda: slow.is_closed)


def _arrived(connection: Connection) -> int:
    reception = connection._reception
    return -1 if reception is None else reception.received_bytes  # type: ignore[union-attr]


def _in_loop(broker: EmbeddedBroker, action: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return action()

    return asyncio.run_coroutine_threadsafe(run(), broker._loop).result(STALL_S)


def test_requests_that_together_exceed_the_memory_are_all_answered(
    tmp_path: Path, calls_to: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds a part of its memory when the memory is full. They get the rest one after another."""
    monkeypatch.setattr(receptions, "GIVE_WAY_S", STALL_S)
    options = {"queued.max.request.bytes": 1_000_000, "message.max.bytes": 3_000_000}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, contextlib.ExitStack() as opened:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        clients = [opened.enter_context(Frames(broker, timeout_s=STALL_S)) for _ in range(12)]
        message = Frames.written("Produce", _produce(calls, bytes(700_000)))
        for each in clients:
            each.greet()
        for start in range(0, len(message), 100_000):
            senders = [
                threading.Thread(target=each.sock.sendall, args=(message[start : start + 100_000],)) for each in clients
            ]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join(STALL_S)
        offsets = [
            pb.ProduceResponse.FromString(each.receive()).topics[0].partitions[0].base_offset for each in clients
        ]
        assert sorted(offsets) == list(range(12))
        assert _admission(broker).delayed > 0
        eventually(lambda: _admission(broker).bytes_in_use == 0)


def test_a_client_that_leaves_while_its_request_waits_for_its_next_step_holds_nothing(tmp_path: Path) -> None:
    options = {"queued.max.request.bytes": 1_000_000}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, contextlib.ExitStack() as opened:
        _stalled(opened, broker, 490_000)
        eventually(lambda: _admission(broker).bytes_in_use >= 490_000)
        with contextlib.ExitStack() as leaving:
            for _ in range(8):
                _stalled(leaving, broker, 900_000, bytes(400_000))
            eventually(lambda: _admission(broker).delayed >= 2)
        eventually(lambda: _admission(broker).bytes_in_use <= 490_016)
        opened.close()
        eventually(lambda: (_admission(broker).bytes_in_use, _admission(broker).parked_bytes) == (0, 0))
        assert _admission(broker).requests == 0
