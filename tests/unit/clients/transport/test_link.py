"""Tests of a client's attempts to connect to one broker."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from millrace.clients.transport import Links, unary
from millrace.config.client import ClientConfig
from millrace.errors import BrokerUnavailableError, ClientClosedError
from millrace.protocol import millrace_pb2 as pb

from ....integration.waiting import AN_HOUR_MS, STALL_S, eventually
from .accepting import accept_in_background

_CALL = unary(lambda stub: stub.Metadata)
_REQUEST = pb.MetadataRequest()


class _Closing:
    """A server that closes each connection."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections = 0
        accept_in_background(self.listener, self._take)

    def _take(self, sock: socket.socket) -> None:
        self.connections += 1
        sock.close()


@pytest.fixture
def server() -> Iterator[_Closing]:
    made = _Closing()
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()


def _links(backoff_ms: int) -> Links:
    return Links(ClientConfig.of({"reconnect.backoff.ms": backoff_ms}))


def test_a_broker_that_was_not_reached_is_tried_again_only_after_the_backoff(server: _Closing) -> None:
    links = _links(AN_HOUR_MS)
    link = links.to(server.address)
    with pytest.raises(BrokerUnavailableError):
        link.call(_CALL, _REQUEST, STALL_S)
    with pytest.raises(BrokerUnavailableError, match=r"reconnect\.backoff\.ms") as caught:
        link.call(_CALL, _REQUEST, 0.01)
    assert not caught.value.was_sent
    assert server.connections == 1
    links.close()


def test_a_broker_that_was_not_reached_is_tried_again_after_the_backoff(server: _Closing) -> None:
    links = _links(5)
    for _ in range(3):
        with pytest.raises(BrokerUnavailableError):
            links.to(server.address).call(_CALL, _REQUEST, STALL_S)
    eventually(lambda: server.connections == 3)
    links.close()


def test_close_ends_the_wait_for_the_next_attempt(server: _Closing) -> None:
    links = _links(AN_HOUR_MS)
    link = links.to(server.address)
    errors: list[Exception] = []

    def call() -> None:
        try:
            link.call(_CALL, _REQUEST, STALL_S)
        except ClientClosedError as error:
            errors.append(error)

    with pytest.raises(BrokerUnavailableError):
        link.call(_CALL, _REQUEST, STALL_S)
    waiting = threading.Thread(target=call)
    waiting.start()
    links.close()
    waiting.join(STALL_S)
    assert errors
