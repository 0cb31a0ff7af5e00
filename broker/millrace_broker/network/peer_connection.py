"""Connection to another broker for calls as frames.

``millrace.protocol.frames`` defines the frames. The code runs in the event loop.

Invariants

- The connection has one call at a time. It is closed when a call ends without its whole answer (a timeout, a cancelled
  caller, a closed peer). Otherwise the rest of that answer would be taken for the next one.
- A large answer is received into memory of its own, and is not copied before its decoding.
"""

from __future__ import annotations

import asyncio
import ssl
from struct import Struct
from typing import Final

import pyarrow as pa

from millrace.errors import BrokerUnavailableError, InvalidRequestError, MillraceError, error_of
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb
from millrace.security import Reloading
from millrace.security.sasl import (
    LIFETIME_PART,
    RESPONSE_BYTES_MAX,
    CredentialsSource,
    Exchange,
    SaslSession,
    authentication,
)
from millrace_broker.network.sockets import keep_alive
from millrace_broker.quotas import BROKER_SOFTWARE_NAME

_BUFFER_BYTES: Final = 16 * 1024
_HELLO_BYTES_MAX: Final = 64 * 1024
_LENGTH: Final = Struct(">i")

Received = bytes | memoryview


class PeerConnection(asyncio.BufferedProtocol):
    """Client side of a connection between brokers; see the module. ``connect`` creates it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer: Final = memoryview(bytearray(_BUFFER_BYTES))
        self._filled_bytes = 0
        self._head: frames.ResponseHead | None = None
        self._body: memoryview | None = None
        self._body_filled_bytes = 0
        self._awaited: asyncio.Future[Received] | None = None
        self._correlation_id = 0
        self._is_authenticating = False
        self._expires = float("inf")
        self._has_said_goodbye = False
        self._lost: Final = asyncio.Event()

    @property
    def is_usable(self) -> bool:
        """True if the connection is open and has no call in flight."""
        if self._transport is None or self._awaited is not None or self._transport.is_closing():
            return False
        return asyncio.get_running_loop().time() < self._expires

    async def authenticate(self, credentials: CredentialsSource, host: str, client_id: str) -> None:
        """Authenticate the new connection.

        Raises ``SaslAuthenticationError``, ``BrokerUnavailableError``, and ``OSError`` if the provider of tokens does
        not answer.
        """
        loop = asyncio.get_running_loop()
        exchange = authentication(await loop.run_in_executor(None, credentials), host, client_id)
        step: bytes | SaslSession = next(exchange)
        while not isinstance(step, SaslSession):
            self._is_authenticating = True
            answer = await self._send(step)
            # A step of SCRAM takes a millisecond, and one of Kerberos may ask the KDC.
            step = await loop.run_in_executor(None, _next_step, exchange, bytes(answer))
        if step.lifetime_ms:
            self._expires = loop.time() + step.lifetime_ms / 1000 * LIFETIME_PART

    async def greet(self, client_id: str) -> pb.HelloResponse:
        """Exchange greetings, and return the broker's description of itself. Raises the errors of ``call``."""
        hello = pb.HelloRequest(client_id=client_id, client_software_name=BROKER_SOFTWARE_NAME).SerializeToString()
        self._correlation_id = frames.HELLO_ID
        body = await self._send(frames.hello_request(hello))
        self._correlation_id = 0
        if len(body) > _HELLO_BYTES_MAX:
            raise InvalidRequestError(f"a greeting of {len(body)} bytes is too long for a broker")
        return pb.HelloResponse.FromString(bytes(body))

    async def call(self, api_key: int, message: bytes, timeout_s: float) -> Received:
        """Make a call and wait for its answer without a time limit. The other side gets ``timeout_s``.

        Raises the broker's error, and ``BrokerUnavailableError`` if the connection breaks.
        """
        return await self._send(frames.request_head(api_key, len(message), round(timeout_s * 1000)) + message)

    async def _send(self, request: bytes) -> Received:
        assert self._transport is not None
        assert self._awaited is None, "one call at a time"
        self._awaited = awaited = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            received: Received = await awaited
            return received
        finally:
            self._awaited = None
            if awaited.cancelled():
                self.close()

    async def broke(self) -> bool:
        """Wait until the connection ends.

        Return False if the broker announced the end, True if the connection broke.
        """
        await self._lost.wait()
        return not self._has_said_goodbye

    def close(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio's protocol --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        keep_alive(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to receive into: the rest of an answer's memory, or the shared buffer."""
        if self._body is not None:
            return self._body[self._body_filled_bytes :]
        return self._buffer[self._filled_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process the received bytes."""
        if self._body is not None:
            self._body_filled_bytes += nbytes
            if self._body_filled_bytes == len(self._body):
                self._answered(self._body)
            return
        self._filled_bytes += nbytes
        try:
            self._consume()
        except MillraceError as error:
            self._fail(error)

    def _consume(self) -> None:
        """Parse the buffer."""
        if self._is_authenticating:
            self._consume_of_sasl()
            return
        if self._filled_bytes < frames.RESPONSE_HEAD_BYTES:
            return
        head = self._head = frames.read_response_head(self._buffer, self._correlation_id)
        if head.kind is frames.Kind.GOODBYE or self._awaited is None:
            self._has_said_goodbye = head.kind is frames.Kind.GOODBYE
            self._broken_off("it ends idle connections, or stops")
            return
        self._drop(frames.RESPONSE_HEAD_BYTES)
        if self._filled_bytes >= head.body_bytes:
            body = bytes(self._buffer[: head.body_bytes])
            self._drop(head.body_bytes)
            self._answered(body)
        else:
            self._body = memoryview(pa.allocate_buffer(head.body_bytes)).cast("B")
            self._body[: self._filled_bytes] = self._buffer[: self._filled_bytes]
            self._body_filled_bytes, self._filled_bytes = self._filled_bytes, 0

    def _consume_of_sasl(self) -> None:
        """Parse an answer of SASL, which has the head of Kafka's answers."""
        if self._filled_bytes < _LENGTH.size:
            return
        (size_bytes,) = _LENGTH.unpack_from(self._buffer)
        if not 0 <= size_bytes <= RESPONSE_BYTES_MAX:
            raise InvalidRequestError(f"an answer to SASL of {size_bytes} bytes is none of a broker")
        end = _LENGTH.size + size_bytes
        if self._filled_bytes < end:
            return
        body = bytes(self._buffer[_LENGTH.size : end])
        self._drop(end)
        self._is_authenticating = False
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(body)

    def _drop(self, size_bytes: int) -> None:
        self._buffer[: self._filled_bytes - size_bytes] = self._buffer[size_bytes : self._filled_bytes]
        self._filled_bytes -= size_bytes

    def _answered(self, body: Received) -> None:
        head, awaited = self._head, self._awaited
        self._head = self._body = None
        is_goodbye = self._filled_bytes >= frames.RESPONSE_HEAD_BYTES and (
            frames.read_response_head(self._buffer, self._correlation_id).kind is frames.Kind.GOODBYE
        )
        if self._filled_bytes and not is_goodbye:
            self._fail(BrokerUnavailableError("the other broker sent more bytes than its answer has"))
            return
        if head is not None and awaited is not None and not awaited.done():
            if head.error:
                awaited.set_exception(error_of(head.error, str(body, "utf-8", "replace")))
            else:
                awaited.set_result(body)
        if is_goodbye:  # a broker that stops sends it right after its last answer
            self._has_said_goodbye = True
            self.close()

    def _broken_off(self, reason: str) -> None:
        self._fail(BrokerUnavailableError(f"the other broker closed the connection: {reason}"))

    def _fail(self, error: MillraceError) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(error)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the call in flight."""
        self._broken_off(str(exc or "the connection was closed"))
        self._lost.set()


def _next_step(exchange: Exchange, answer: bytes) -> bytes | SaslSession:
    """Return the next request of an exchange, or its session at its end. Raises ``SaslAuthenticationError``."""
    try:
        return exchange.send(answer)
    except StopIteration as done:
        session: SaslSession = done.value
        return session


async def connect(
    host: str,
    port: int,
    *,
    client_id: str,
    tls: Reloading[ssl.SSLContext] | None = None,
    credentials: CredentialsSource | None = None,
) -> tuple[PeerConnection, pb.HelloResponse]:
    """Connect and exchange greetings. Return the connection and the broker's description of itself.

    Raises ``OSError`` (also for a certificate that one side refuses), ``BrokerUnavailableError``,
    ``InvalidRequestError``, and the error with which the broker refuses the connection.
    """
    loop = asyncio.get_running_loop()
    context = None
    if tls is not None:
        context = await loop.run_in_executor(None, tls.current) if tls.is_due else tls.value
    _, connection = await loop.create_connection(PeerConnection, host, port, ssl=context)
    try:
        if credentials is not None:
            await connection.authenticate(credentials, host, client_id)
        return connection, await connection.greet(client_id)
    except BaseException:
        connection.close()
        raise
