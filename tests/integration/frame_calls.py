"""Frames written by hand, which no client of ours would send."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Self

from millrace.errors import error_of
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.listeners.tcp_listener import TcpListener
from millrace_broker.server import BrokerServer
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S

UNKNOWN = 30_000
"""The API key of a call that no broker knows."""


def framing(server: BrokerServer) -> TcpListener:
    """Return the first listener of a broker for Kafka's framing."""
    return next(each for each in server.listeners.by_name.values() if isinstance(each, TcpListener))


class Frames:
    """One connection. Call ``greet`` first."""

    def __init__(self, broker: EmbeddedBroker | BrokerServer, timeout_s: float = STALL_S) -> None:
        self.sock = socket.create_connection(("127.0.0.1", broker.port), timeout_s)

    def greet(self, client_id: str = "test") -> pb.HelloResponse:
        message = pb.HelloRequest(client_id=client_id).SerializeToString()
        self.sock.sendall(frames.hello_request(message))
        return pb.HelloResponse.FromString(self.receive(frames.HELLO_ID))

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.sock.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def send(self, name: str, request: Any, deadline_ms: int = 0) -> None:
        self.sock.sendall(self.written(name, request, deadline_ms))

    @staticmethod
    def written(name: str, request: Any, deadline_ms: int = 0) -> bytes:
        message = request if isinstance(request, bytes) else request.SerializeToString()
        return frames.request_head(frames.API_KEYS.get(name, UNKNOWN), len(message), deadline_ms) + message

    def head(self, correlation_id: int = 0) -> frames.ResponseHead:
        return frames.read_response_head(self.exactly(frames.RESPONSE_HEAD_BYTES), correlation_id)

    def receive(self, correlation_id: int = 0) -> bytes:
        """Return the message of a response, or raise its error."""
        head = self.head(correlation_id)
        body = self.exactly(head.body_bytes)
        if head.error:
            raise error_of(head.error, body.decode())
        assert head.kind is frames.Kind.ANSWER
        return body

    def call(self, name: str, request: Any) -> bytes:
        self.send(name, request)
        return self.receive()

    @property
    def is_closed(self) -> bool:
        """Tell whether the broker has closed the connection, after reading everything else that it sent."""
        self.sock.settimeout(0.01)
        try:
            while self.sock.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
