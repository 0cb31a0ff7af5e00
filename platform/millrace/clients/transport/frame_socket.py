"""Client connection for frames with non-blocking send and receive.

Only ``wait`` and ``connect`` wait. Invariants:

- At most one request is in flight; data after its response sets ``is_spent``.
- A request counts as sent when its last byte was given to the kernel, because a broker ignores a partial request.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from contextlib import suppress
from struct import Struct
from typing import Final

import pyarrow as pa

from millrace.clients.transport.calls import Received
from millrace.clients.transport.tls_socket import NEEDS_TLS, TlsSocket, refusal_of, tls_socket
from millrace.config.security_options import SslOptions
from millrace.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    SslAuthenticationError,
    error_of,
)
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb
from millrace.security.sasl import (
    CORRELATION,
    LIFETIME_PART,
    RESPONSE_BYTES_MAX,
    CredentialsSource,
    SaslSession,
    authentication,
)

_RECEIVE_BYTES: Final = 64 * 1024
_SMALL_BYTES: Final = 64 * 1024
"""Messages up to this size are joined with their heads, which is cheaper than sending two pieces."""
_HELLO_BYTES_MAX: Final = 64 * 1024
_LENGTH: Final = Struct(">i")
_TLS_ALERT: Final = b"\x15\x03"
"""Start of the answer of a listener with TLS to a client without."""


class FrameSocket:
    """A connection after the greeting. One thread at a time uses it; any thread may call ``shut``."""

    __slots__ = (
        "_body_max",
        "_fd",
        "_head_part",
        "_lock",
        "_out",
        "_poll",
        "_received",
        "_sock",
        "_view",
        "body",
        "expires_at",
        "head",
        "idle_since",
        "is_spent",
    )

    def __init__(self, sock: socket.socket, *, response_bytes_max: int) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._fd = sock.fileno()
        self._body_max = response_bytes_max
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._out: list[memoryview] = []
        self._head_part = b""
        self._view: memoryview | None = None
        self._received = 0
        self.head: frames.ResponseHead | None = None
        self.body: Received = b""
        self.is_spent = False
        self.idle_since = 0.0
        self.expires_at = float("inf")
        """Time (monotonic) after which no call begins, because the broker wants a new authentication."""

    @property
    def fd(self) -> int:
        """The socket's descriptor, while it is open."""
        return self._fd

    # --- sending --------------------------------------------------------------------------------------------------

    @property
    def is_sent(self) -> bool:
        """True if the kernel has the whole request."""
        return not self._out

    def start(self, api_key: int, message: bytes, deadline_ms: int) -> None:
        """Start a request, and send as much as possible at once. Raises ``OSError``."""
        self.head = None
        head = frames.request_head(api_key, len(message), deadline_ms)
        if len(message) <= _SMALL_BYTES:
            data = head + message
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self._out = [memoryview(data)[sent:]]
            return
        self._out = [memoryview(head), memoryview(message)]
        self._send()

    def _send(self) -> None:
        while self._out:
            try:
                sent = self._sock.sendmsg(self._out)
            except BlockingIOError:
                return
            while self._out and sent >= len(self._out[0]):
                sent -= len(self._out.pop(0))
            if self._out:
                self._out[0] = self._out[0][sent:]

    # --- receiving ------------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Send and receive as much as possible at once; returns true when the response is in ``head`` and ``body``.

        Raises ``OSError`` if the connection broke. ``is_sent`` then tells whether the broker can have received the
        request. Raises ``InvalidRequestError`` for an invalid response, ``MessageTooLargeError`` for one above the
        client's limit.
        """
        failure: OSError | None = None
        if self._out:
            try:
                self._send()
            except OSError as error:
                failure = error  # but the broker may have sent the reason for its close
        try:
            return self._receive()
        except OSError as error:
            raise failure or error from None

    def _receive(self) -> bool:
        if self._view is None:
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return False
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            if self._head_part:
                data, self._head_part = self._head_part + data, b""
            if len(data) < frames.RESPONSE_HEAD_BYTES:
                self._head_part = data
                return False
            head = self.head = frames.read_response_head(data)
            came = len(data) - frames.RESPONSE_HEAD_BYTES
            if came >= head.body_bytes:
                self.body = data[frames.RESPONSE_HEAD_BYTES : frames.RESPONSE_HEAD_BYTES + head.body_bytes]
                self.is_spent = self.is_spent or came > head.body_bytes or bool(self._out)
                return True
            if head.body_bytes > self._body_max:
                raise MessageTooLargeError(
                    f"a response of {head.body_bytes} bytes is larger than max {self._body_max} (fetch.max.bytes)"
                )
            self._view = memoryview(pa.allocate_buffer(head.body_bytes)).cast("B")
            self._view[:came] = data[frames.RESPONSE_HEAD_BYTES :]
            self._received = came
        view = self._view
        while self._received < len(view):
            try:
                came = self._sock.recv_into(view[self._received :])
            except BlockingIOError:
                return False
            if not came:
                raise ConnectionResetError("the broker closed the connection in the middle of a response")
            self._received += came
        self.body, self._view = view, None
        self.is_spent = self.is_spent or bool(self._out)
        return True

    def take(self) -> tuple[frames.ResponseHead, Received]:
        """Return and release the received response."""
        assert self.head is not None
        body, self.body = self.body, b""
        return self.head, body

    def wait(self, deadline: float) -> bool:
        """Wait until data can be received, or sent; returns false at ``deadline`` (monotonic)."""
        if self._out:
            self._poll.modify(self._fd, select.POLLIN | select.POLLOUT)
        try:
            left_ms = (deadline - time.monotonic()) * 1000
            return left_ms > 0 and bool(self._poll.poll(left_ms))
        finally:
            if self._out:
                self._poll.modify(self._fd, select.POLLIN)

    @property
    def is_usable(self) -> bool:
        """True if an idle connection can be used, because neither a goodbye nor the end of the stream arrived."""
        if self.is_spent or time.monotonic() >= self.expires_at:
            return False
        if isinstance(self._sock, TlsSocket):
            return self._sock.has_nothing_to_read(self._poll)
        return not self._poll.poll(0)

    # --- the end --------------------------------------------------------------------------------------------------

    def shut(self) -> None:
        """Shut the connection down; its user then closes it."""
        with self._lock:
            if self._fd >= 0:
                with suppress(OSError):  # the other end was faster
                    # Not the method of a socket with TLS, which would make its user read and write without TLS.
                    socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; only its user may call this."""
        with self._lock:
            self._fd = -1
            self._sock.close()

    def let_go(self) -> None:
        """Close the descriptor in a forked process, where no thread uses it."""
        self._sock.close()


def connect(
    host: str,
    port: int,
    hello: pb.HelloRequest,
    *,
    tls: ssl.SSLContext | None = None,
    stores: SslOptions,
    credentials: CredentialsSource | None = None,
    timeout_s: float,
    response_bytes_max: int,
) -> tuple[FrameSocket, pb.HelloResponse]:
    """Connect to a broker's listener for Kafka's framing, with ``tls`` if it is given, and make the first call.

    ``stores`` are the options of ``tls``, which errors name.

    Raises ``OSError`` without an answer in time, and the error of either side's refusal: ``InvalidRequestError``,
    ``UnsupportedVersionError``, ``ThrottledError``, ``SslAuthenticationError``.
    """
    deadline = time.monotonic() + timeout_s
    sock = socket.create_connection((host, port), timeout_s)
    try:
        if tls is not None:
            sock = tls_socket(sock, tls, host, port, deadline, stores)
        session = None if credentials is None else authenticate(sock, credentials, host, hello.client_id, deadline)
        message = hello.SerializeToString()
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        sock.sendall(frames.hello_request(message))
        head = frames.read_response_head(exactly(sock, frames.RESPONSE_HEAD_BYTES, deadline), frames.HELLO_ID)
        if head.body_bytes > _HELLO_BYTES_MAX:
            raise InvalidRequestError(
                f"a greeting of {head.body_bytes} bytes is too large: the server is not a broker of millrace"
            )
        body = exactly(sock, head.body_bytes, deadline)
        if head.error:
            raise error_of(head.error, body.decode("utf-8", "replace"))
        opened = FrameSocket(sock, response_bytes_max=response_bytes_max)
        if session is not None and session.lifetime_ms:
            opened.expires_at = time.monotonic() + session.lifetime_ms / 1000 * LIFETIME_PART
        return opened, pb.HelloResponse.FromString(body)
    except ssl.SSLError as error:
        # With TLS 1.3, a broker that refuses the client's certificate says so after the handshake.
        sock.close()
        raise refusal_of(error, host, port, stores) from None
    except BaseException:
        sock.close()
        raise


def authenticate(
    sock: socket.socket, credentials: CredentialsSource, host: str, client_id: str, deadline: float
) -> SaslSession:
    """Authenticate a new connection. Raises ``SaslAuthenticationError``, ``InvalidRequestError``, ``OSError``."""
    exchange = authentication(credentials(), host, client_id)
    request = next(exchange)
    while True:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        sock.sendall(request)
        head = exactly(sock, _LENGTH.size + len(CORRELATION), deadline)
        (size_bytes,) = _LENGTH.unpack_from(head)
        if head[_LENGTH.size :] != CORRELATION or not len(CORRELATION) <= size_bytes <= RESPONSE_BYTES_MAX:
            raise InvalidRequestError("the answer to SASL is none of a broker: is this a listener with SASL?")
        try:
            request = exchange.send(CORRELATION + exactly(sock, size_bytes - len(CORRELATION), deadline))
        except StopIteration as done:
            session: SaslSession = done.value
            return session


def exactly(sock: socket.socket, size_bytes: int, deadline: float) -> bytes:
    """Receive so many bytes. Raises ``OSError`` after ``deadline`` (monotonic), ``SslAuthenticationError``."""
    data = b""
    while len(data) < size_bytes:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        part = sock.recv(size_bytes - len(data))
        if not part:
            if data.startswith(_TLS_ALERT):
                raise SslAuthenticationError(NEEDS_TLS)
            raise ConnectionResetError("the connection was closed during the greeting")
        data += part
    return data
