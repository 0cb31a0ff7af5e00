"""Kinds of calls on a connection.

A ``WireCall`` reads a request and writes its response, and a connection knows nothing else of a call. The calls of
millrace are here; ``kafka_api`` has those of Kafka.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError

from millrace.errors import InvalidRequestError, MillraceError, UnsupportedVersionError
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.produce_request import read_produce_request
from millrace_broker.api import RequestContext
from millrace_broker.api.common.throttling import throttled
from millrace_broker.broker import Broker
from millrace_broker.listeners.shared import UNARY_METHODS, UnaryMethod

_PRODUCE: Final = "Produce"

Buffer = bytes | bytearray | memoryview
Response = Sequence[Buffer]
"""Bytes of a response, with its length. An empty response is not sent, as Kafka's Produce with ``acks=0`` wants."""


class WireCall(Protocol):
    """One call of a protocol, in all of its versions."""

    @property
    def name(self) -> str:
        """Name of the call, which determines its class."""
        ...

    @property
    def waits_for_place(self) -> bool:
        """True if a request waits while too many others run. Otherwise it is refused."""
        ...

    def begin(
        self, broker: Broker, head: frames.Head, content: Buffer, position: int, context: RequestContext
    ) -> tuple[Coroutine[Any, Any, Response], int]:
        """Read a request from ``position`` on. Return the work that answers it, and its deadline in ms (0: none).

        The client id, which all requests begin with, ends at ``position``.

        Raises ``MillraceError`` if it cannot be read.
        """
        ...

    def refusal(self, head: frames.Head, error: MillraceError) -> Response | None:
        """Return the response for a failed request; None if its connection must be closed."""
        ...


@dataclass(frozen=True, slots=True)
class OwnCall:
    """A call of millrace, with protobuf messages behind the heads of ``millrace.protocol.frames``."""

    method: UnaryMethod
    waits_for_place: bool = False
    """Clients of millrace know the error, and wait before they repeat the call."""

    @property
    def name(self) -> str:
        """Name of the call in the service ``Broker``."""
        return self.method.name

    def begin(
        self, broker: Broker, head: frames.Head, content: Buffer, position: int, context: RequestContext
    ) -> tuple[Coroutine[Any, Any, Response], int]:
        """See ``WireCall``."""
        frames.check_version(head.api_version)
        deadline_ms, message = frames.read_rest(content, position)
        if self.name == _PRODUCE and isinstance(content, bytearray):  # not a part of the listener's buffer
            request, records = read_produce_request(message)
            return self._answer(broker, head, request, context._replace(records=records)), deadline_ms
        try:
            request = self.method.request.FromString(message)
        except DecodeError as error:
            raise InvalidRequestError(f"invalid {self.name} request: {error}") from None
        return self._answer(broker, head, request, context), deadline_ms

    async def _answer(self, broker: Broker, head: frames.Head, request: Any, context: RequestContext) -> Response:
        work = self.method.handler(broker, request, context)
        response = await (work if context.usage is None else throttled(work, context))
        body: bytes = response.SerializeToString()
        return frames.response_head(len(body), correlation_id=head.correlation_id), body

    def refusal(self, head: frames.Head, error: MillraceError) -> Response:
        """See ``WireCall``."""
        return error_response(head.correlation_id, error)


@dataclass(frozen=True, slots=True)
class UnknownCall:
    """A call of millrace whose API key this broker does not have."""

    name: str
    waits_for_place: bool = False

    def begin(
        self, broker: Broker, head: frames.Head, content: Buffer, position: int, context: RequestContext
    ) -> tuple[Coroutine[Any, Any, Response], int]:
        """See ``WireCall``."""
        raise UnsupportedVersionError(f"this broker does not support call {self.name}: it may be older")

    def refusal(self, head: frames.Head, error: MillraceError) -> Response:
        """See ``WireCall``."""
        return error_response(head.correlation_id, error)


def error_response(correlation_id: int, error: MillraceError) -> Response:
    """Return the response of millrace's protocol with an error."""
    text = error.message.encode()
    return frames.response_head(len(text), error.code, correlation_id=correlation_id), text


def read_hello(head: frames.Head, content: Buffer) -> pb.HelloRequest:
    """Read the first request of a client of millrace. Raises ``InvalidRequestError``, ``UnsupportedVersionError``."""
    _, position = frames.read_client_id(content)
    try:
        hello = pb.HelloRequest.FromString(bytes(frames.read_rest(content, position)[1]))
    except DecodeError as error:
        raise InvalidRequestError(f"a connection must begin with a HelloRequest: {error}") from None
    frames.check_version(head.api_version)
    return hello


def own_calls() -> dict[int, WireCall]:
    """Return the calls of millrace by their API keys."""
    return {frames.API_KEYS[method.name]: OwnCall(method) for method in UNARY_METHODS.values()}


_FOREIGN: Final = (
    (b"\x16\x03", "TLS", "this listener takes plaintext: set security.protocol=PLAINTEXT"),
    (b"PRI * HTTP/2", "gRPC (HTTP/2)", "connect to a listener of the protocol grpc (listener.protocol.map)"),
    (b"GET ", "HTTP", "metrics have a port of their own (metrics.port)"),
    (b"POST ", "HTTP", "this listener takes calls of Kafka and millrace"),
)


def check_first_bytes(data: Buffer) -> None:
    """Raise ``InvalidRequestError`` if a connection begins as one of another protocol."""
    start = bytes(data[:12])
    for prefix, protocol, remedy in _FOREIGN:
        if start.startswith(prefix):
            raise InvalidRequestError(f"{start!r} is another protocol, {protocol}: {remedy}")
