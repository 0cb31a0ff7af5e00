"""Tests of the client's frame transport.

Each call has one correct outcome, whatever the server does.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.clients.transport.calls import PendingCall, Throttle, unary
from millrace.clients.transport.frame_receiver import Receiver
from millrace.clients.transport.frame_socket import connect
from millrace.clients.transport.frame_transport import FrameTransport
from millrace.config.security_options import SslOptions
from millrace.errors import (
    BrokerUnavailableError,
    ClientClosedError,
    InvalidRequestError,
    MessageTooLargeError,
    MillraceError,
    RequestTimedOutError,
    ThrottledError,
    UnknownServerError,
    UnsupportedVersionError,
)
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb

from ....integration.waiting import STALL_S, eventually
from .accepting import accept_in_background

_CALL = unary(lambda stub: stub.Metadata)
_REQUEST = pb.MetadataRequest(topics=["t" * 100])
_RESPONSE = pb.MetadataResponse(cluster_id="here")
_ANSWER = frames.response_head(len(_RESPONSE.SerializeToString())) + _RESPONSE.SerializeToString()

Behaviour = Callable[[socket.socket], None]


class _Broker:
    """A server whose handling of connections a test sets.

    The server first sends the greeting.
    """

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.behaviour: Behaviour = lambda sock: None
        self.hello = pb.HelloResponse(request_bytes_max=10_000_000, idle_ms_max=600_000)
        self.greetings = 0
        self.connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_closed = False
        accept_in_background(self.listener, self._take)

    def _take(self, sock: socket.socket) -> None:
        with self._lock:
            if self._is_closed:
                sock.close()
                return
            self.connections.append(sock)
        threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            take(sock)
            body = self.hello.SerializeToString()
            self.greetings += 1
            sock.sendall(frames.response_head(len(body), correlation_id=frames.HELLO_ID) + body)
            self.behaviour(sock)
        except (OSError, EOFError):
            pass

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self._lock:
            self._is_closed = True
        for sock in self.connections:
            sock.close()


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def take(sock: socket.socket) -> int:
    """Receive a request and return its deadline in ms."""
    head = frames.read_head(_exactly(sock, frames.HEAD_BYTES))
    rest = _exactly(sock, head.rest_bytes)
    deadline_ms, _ = frames.read_rest(rest, frames.read_client_id(rest)[1])
    return deadline_ms


def _answering(*pieces: bytes) -> Behaviour:
    def behave(sock: socket.socket) -> None:
        while True:
            take(sock)
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(0.005 if len(pieces) > 1 else 0)

    return behave


def _closing(*pieces: bytes) -> Behaviour:
    def behave(sock: socket.socket) -> None:
        take(sock)
        for piece in pieces:
            sock.sendall(piece)
        sock.close()

    return behave


def _silent(sock: socket.socket) -> None:
    take(sock)
    sock.recv(1)


@pytest.fixture
def broker() -> Iterator[_Broker]:
    made = _Broker()
    yield made
    made.close()


class _Client:
    """A transport to the broker, with both ways of making a call."""

    def __init__(self, broker: _Broker) -> None:
        self.receiver = Receiver("test")
        port = broker.listener.getsockname()[1]

        def connected(timeout_s: float) -> Any:
            return connect(
                "127.0.0.1",
                port,
                pb.HelloRequest(),
                stores=SslOptions(),
                timeout_s=timeout_s,
                response_bytes_max=50_000_000,
            )

        self.transport = FrameTransport(f"127.0.0.1:{port}", self.receiver, connected, Throttle())

    def _socket(self) -> Any:
        return self.transport.idle_socket() or self.transport.new_socket(10)

    def call(self, timeout_s: float = 10, request: Any = _REQUEST) -> pb.MetadataResponse:
        return self.transport.call(self._socket(), _CALL, request, timeout_s)

    def begin(self, timeout_s: float = 10, request: Any = _REQUEST, on_done: Any = None) -> PendingCall[Any]:
        pending: PendingCall[Any] = PendingCall(on_done)
        self.transport.begin(self._socket(), _CALL, request, timeout_s, pending)
        return pending

    def begun(self, timeout_s: float = 10, request: Any = _REQUEST) -> pb.MetadataResponse:
        return self.begin(timeout_s, request).result(STALL_S)

    def helped(self, timeout_s: float = 10, request: Any = _REQUEST) -> pb.MetadataResponse:
        pending = self.begin(timeout_s, request)
        while not pending.is_done:
            self.receiver.help(lambda: pending.is_done, 20)
        return pending.result()

    def close(self) -> None:
        self.transport.close()
        self.receiver.close()


@pytest.fixture
def client(broker: _Broker) -> Iterator[_Client]:
    made = _Client(broker)
    yield made
    made.close()


_WAYS = pytest.mark.parametrize("way", ["call", "begun", "helped"])


@_WAYS
def test_answers_come_over_one_connection(broker: _Broker, client: _Client, way: str) -> None:
    broker.behaviour = _answering(_ANSWER)
    for _ in range(50):
        assert getattr(client, way)() == _RESPONSE
    assert broker.greetings == 1


@_WAYS
def test_an_answer_may_come_in_pieces(broker: _Broker, client: _Client, way: str) -> None:
    broker.behaviour = _answering(*(_ANSWER[at : at + 3] for at in range(0, len(_ANSWER), 3)))
    for _ in range(3):
        assert getattr(client, way)() == _RESPONSE


@_WAYS
def test_large_messages_go_both_ways(broker: _Broker, client: _Client, way: str) -> None:
    large = pb.MetadataResponse(cluster_id="x" * 20_000_000).SerializeToString()
    broker.behaviour = _answering(frames.response_head(len(large)) + large)
    request = pb.MetadataRequest(topics=["y" * 9_000_000])
    for _ in range(2):
        assert getattr(client, way)(request=request).SerializeToString() == large


@_WAYS
def test_an_error_of_the_broker_is_raised_and_the_connection_kept(broker: _Broker, client: _Client, way: str) -> None:
    broker.behaviour = _answering(frames.response_head(4, ThrottledError.code) + b"full")
    for _ in range(2):
        with pytest.raises(ThrottledError, match="full"):
            getattr(client, way)()
    assert broker.greetings == 1


@_WAYS
@pytest.mark.parametrize("part", [0, 3, frames.RESPONSE_HEAD_BYTES, frames.RESPONSE_HEAD_BYTES + 2])
def test_of_a_broken_connection_it_is_not_known_what_happened(
    broker: _Broker, client: _Client, way: str, part: int
) -> None:
    broker.behaviour = _closing(_ANSWER[:part])
    with pytest.raises(BrokerUnavailableError) as caught:
        getattr(client, way)()
    assert caught.value.was_sent


@_WAYS
def test_after_a_goodbye_it_is_known_that_nothing_happened(broker: _Broker, client: _Client, way: str) -> None:
    broker.behaviour = _closing(frames.response_head(4, 0, frames.Kind.GOODBYE) + b"stop")
    with pytest.raises(BrokerUnavailableError, match="stop") as caught:
        getattr(client, way)()
    assert not caught.value.was_sent


@_WAYS
def test_a_request_that_was_not_received_to_its_end_had_no_effect(broker: _Broker, client: _Client, way: str) -> None:
    def reset(sock: socket.socket) -> None:
        _exactly(sock, 1000)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        sock.close()

    broker.behaviour = reset
    with pytest.raises(BrokerUnavailableError) as caught:
        getattr(client, way)(request=pb.MetadataRequest(topics=["y" * 9_900_000]))
    assert not caught.value.was_sent


@_WAYS
def test_a_malformed_answer_is_refused(broker: _Broker, client: _Client, way: str) -> None:
    broker.behaviour = _answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(InvalidRequestError):
        getattr(client, way)()
    broker.behaviour = _answering(frames.response_head(3) + b"\xff\xff\xff")
    with pytest.raises(UnknownServerError, match="Metadata"):
        getattr(client, way)()


@_WAYS
def test_messages_have_limits_on_both_sides(broker: _Broker, client: _Client, way: str) -> None:
    broker.behaviour = _answering(frames.response_head(60_000_000))
    with pytest.raises(MessageTooLargeError, match="larger than max 50000000"):
        getattr(client, way)()
    broker.behaviour = _answering(_ANSWER)
    with pytest.raises(MessageTooLargeError, match=r"larger than max 10000000, .*socket\.request\.max\.bytes"):
        getattr(client, way)(request=pb.MetadataRequest(topics=["y" * 11_000_000]))
    assert getattr(client, way)() == _RESPONSE


@_WAYS
def test_a_deadline_ends_a_call_and_is_sent_to_the_broker(broker: _Broker, client: _Client, way: str) -> None:
    told: list[int] = []

    def behave(sock: socket.socket) -> None:
        told.append(take(sock))
        sock.recv(1)

    broker.behaviour = behave
    with pytest.raises(RequestTimedOutError, match="did not answer Metadata within 200 ms"):
        getattr(client, way)(0.2)
    assert told == [200]
    broker.behaviour = _answering(_ANSWER)
    assert getattr(client, way)() == _RESPONSE


def test_a_short_deadline_passes_before_an_earlier_long_one(broker: _Broker, client: _Client) -> None:
    broker.behaviour = _silent
    long = client.begin(3600)
    with pytest.raises(RequestTimedOutError):
        client.begun(0.1)
    assert not long.is_done


@_WAYS
def test_an_idle_connection_that_was_closed_is_not_used(broker: _Broker, client: _Client, way: str) -> None:
    def once(sock: socket.socket) -> None:
        take(sock)
        sock.sendall(_ANSWER)
        sock.close()
        closed.append(sock)  # the socket's own number is gone before the system has closed it

    closed: list[socket.socket] = []
    broker.behaviour = once
    for number in range(1, 6):
        assert getattr(client, way)() == _RESPONSE
        eventually(lambda number=number: len(closed) == number)


@_WAYS
def test_closing_ends_what_is_under_way(broker: _Broker, client: _Client, way: str) -> None:
    under_way = threading.Event()

    def behave(sock: socket.socket) -> None:
        take(sock)
        under_way.set()
        sock.recv(1)

    broker.behaviour = behave
    outcomes: list[MillraceError] = []

    def make() -> None:
        try:
            getattr(client, way)()
        except MillraceError as error:
            outcomes.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    assert under_way.wait(STALL_S)
    client.close()
    thread.join(STALL_S)
    assert [type(outcome) for outcome in outcomes] == [ClientClosedError]
    with pytest.raises(ClientClosedError):
        client.call()


def test_a_cancelled_call_ends_at_once_and_its_connection_too(broker: _Broker, client: _Client) -> None:
    over = threading.Event()

    def behave(sock: socket.socket) -> None:
        take(sock)
        assert sock.recv(1) == b""
        over.set()

    broker.behaviour = behave
    told: list[Any] = []
    pending = client.begin(on_done=lambda *outcome: told.append(outcome))
    pending.cancel()
    pending.cancel()
    with pytest.raises(BrokerUnavailableError, match="cancelled"):
        pending.result()
    assert over.wait(STALL_S)
    assert len(told) == 1


def test_many_calls_at_a_time_each_have_a_connection(broker: _Broker, client: _Client) -> None:
    all_there = threading.Barrier(20)

    def behave(sock: socket.socket) -> None:
        take(sock)
        all_there.wait(STALL_S)
        sock.sendall(_ANSWER)

    broker.behaviour = behave
    pending = [client.begin() for _ in range(20)]
    assert [each.result(STALL_S) for each in pending] == [_RESPONSE] * 20
    assert broker.greetings == 20


def test_a_callback_of_one_call_delays_no_other_call(broker: _Broker, client: _Client) -> None:
    broker.behaviour = _answering(_ANSWER)
    go_on = threading.Event()
    blocked = [client.begin(on_done=lambda *outcome: go_on.wait(STALL_S)) for _ in range(5)]
    assert client.begun() == _RESPONSE
    go_on.set()
    for each in blocked:
        each.result(STALL_S)


def test_a_helping_thread_is_woken_by_others(broker: _Broker, client: _Client) -> None:
    broker.behaviour = _silent
    client.begin(60)
    is_over = threading.Event()
    helped: list[bool] = []
    thread = threading.Thread(target=lambda: helped.append(client.receiver.help(is_over.is_set, 60)))
    thread.start()
    eventually(lambda: client.receiver._helper is not None)
    is_over.set()
    client.receiver.wake()
    thread.join(STALL_S)
    assert helped == [True]
    assert client.receiver.help(lambda: True, 60)  # its memory is free again
    client.close()
    assert not client.receiver.help(lambda: False, 60)


def _refused(error: int, text: bytes) -> bytes:
    return frames.response_head(len(text), error, correlation_id=frames.HELLO_ID) + text


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (_refused(ThrottledError.code, b"full"), ThrottledError),
        (_refused(UnsupportedVersionError.code, b"old"), UnsupportedVersionError),
        (b"HTTP/1.1 400 Bad Request\r\n", InvalidRequestError),
        (b"\0\0\x12\4\0\0\0\0\0\0\2\0\0\0\0", InvalidRequestError),  # gRPC's: SETTINGS of HTTP/2
        (frames.response_head(2**30, correlation_id=frames.HELLO_ID), InvalidRequestError),
        (b"", OSError),
    ],
)
def test_an_invalid_greeting_ends_the_connection(answer: bytes, error: type[Exception]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(error):
            connect(
                "127.0.0.1",
                listener.getsockname()[1],
                pb.HelloRequest(),
                stores=SslOptions(),
                timeout_s=10,
                response_bytes_max=1000,
            )
        thread.join(STALL_S)
