"""Connection to each broker: Kafka's framing, or gRPC with ``transport=grpc``.

Invariants

- An address of a client is one of a listener for Kafka's framing. The broker names its listener for gRPC in the answer
  to ``HELLO``.
- With ``transport=grpc``, an address may also be one of gRPC. Metadata over gRPC has such addresses.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Final

from millrace.clients.backoff import ReconnectBackoff
from millrace.clients.transport.call_threads import CallThreads
from millrace.clients.transport.calls import PendingCall, Request, Response, Throttle, UnaryCall, not_reached, unary
from millrace.clients.transport.client_tls import credentials_of, tls_of
from millrace.clients.transport.frame_receiver import Receiver
from millrace.clients.transport.frame_socket import FrameSocket, connect
from millrace.clients.transport.frame_transport import FrameTransport
from millrace.clients.transport.grpc_transport import GrpcTransport
from millrace.clients.transport.tls_socket import NEEDS_TLS, wants_tls
from millrace.config.client import ClientConfig, ConsumerConfig, Transport
from millrace.errors import (
    ClientClosedError,
    InvalidConfigError,
    InvalidRequestError,
    MillraceError,
    SslAuthenticationError,
)
from millrace.interrupts import Uninterrupted
from millrace.protocol import millrace_pb2 as pb

_MESSAGE_OVERHEAD_BYTES: Final = 64 * 2**20
"""Margin of a response above ``fetch.max.bytes``, because its first batch is sent whatever its size."""
_SOFTWARE_NAME: Final = "millrace"
_KAFKA: Final = "kafka"
_GRPC: Final = "grpc"
_API_VERSIONS: Final = unary(lambda stub: stub.ApiVersions)
_HAS_EPOLL: Final = hasattr(select, "epoll") and hasattr(os, "eventfd")
_GREETING_TIMEOUT_S: Final = 5.0
"""Maximum wait for a broker that does not answer the first call of a connection."""
_TLS_PROBE_S: Final = 1.0
"""Time for a handshake that shows why a listener for gRPC has closed a connection."""


@cache
def _software_version() -> str:
    return version("millrace")


class Links:
    """Links of one client to all known brokers, and their shared threads. Thread safe."""

    def __init__(self, config: ClientConfig) -> None:
        """Read the client's stores if it uses TLS. Raises ``InvalidConfigError``."""
        self._config = config
        self.tls: Final = tls_of(config)
        self.credentials = credentials_of(config)
        self._lock = threading.RLock()
        self._links: dict[str, Link] = {}
        self._is_closed = False
        self.threads = CallThreads("millrace-call")
        self.closing = threading.Event()
        """Set when the client is closed, which ends the waits for quotas."""
        self._receiver: Receiver | None = None
        _living.add(self)

    def start_anew(self) -> None:
        """Forget the connections and threads in a forked process, because they belong to the parent."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.let_go()
        self._lock = threading.RLock()
        self.credentials = credentials_of(self._config)  # a thread of the parent may hold their lock
        self.threads = CallThreads("millrace-call")
        self.closing = threading.Event()
        self._receiver = None

    def to(self, address: str) -> Link:
        """Return the link to ``host:port``. Raises ``ClientClosedError``."""
        link = self._links.get(address)
        if link is not None:
            return link
        with self._lock:
            if self._is_closed:
                raise ClientClosedError("the client is closed: make a new one")
            return self._links.setdefault(address, Link(address, self._config, self))

    def receiver(self) -> Receiver:
        """Return the threads that receive responses."""
        with self._lock:
            if self._receiver is None:
                self._receiver = Receiver("millrace-answers")
            return self._receiver

    def help(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        """Receive responses in the current thread instead of waiting for another: ``Receiver.help``."""
        receiver = self._receiver
        return receiver is not None and receiver.help(is_over, timeout_s)

    def wake(self) -> None:
        """Let a helping thread check whether it is over."""
        receiver = self._receiver
        if receiver is not None:
            receiver.wake()

    def close(self) -> None:
        """Close all connections; calls in flight end with ``ClientClosedError``. May be called twice."""
        with self._lock:
            self._is_closed = True
            links, self._links = list(self._links.values()), {}
            receiver, self._receiver = self._receiver, None
        self.closing.set()
        for link in links:
            link.close()
        if receiver is not None:
            receiver.close()
        self.threads.close()


_living: Final[weakref.WeakSet[Links]] = weakref.WeakSet()


def _after_fork() -> None:
    for links in list(_living):
        links.start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Link:
    """Link to one broker. Thread safe."""

    def __init__(self, address: str, config: ClientConfig, owner: Links) -> None:
        self._address = address
        host, _, port = address.rpartition(":")
        self._host, self._port = host.removeprefix("[").removesuffix("]"), int(port)
        self._config = config
        self._owner = owner
        fetch_bytes = config.fetch_max_bytes if isinstance(config, ConsumerConfig) else 0
        self._response_bytes_max = fetch_bytes + _MESSAGE_OVERHEAD_BYTES
        self._throttle: Final = Throttle()
        self._reconnects: Final = ReconnectBackoff(config)
        self.grpc: Final = GrpcTransport(
            address,
            self._find_grpc,
            config,
            owner.tls,
            owner.credentials,
            self._response_bytes_max,
            owner.threads,
            self._throttle,
        )
        self._frames: FrameTransport | None = None
        if config.transport is not Transport.GRPC and _HAS_EPOLL:
            self._frames = FrameTransport(address, owner.receiver(), self._greet, self._throttle)

    # --- calls ----------------------------------------------------------------------------------------------------

    def call(self, call: UnaryCall[Request, Response], request: Request, timeout_s: float) -> Response:
        """Make a call and wait for it.

        Raises the broker's error, ``BrokerUnavailableError`` (its ``was_sent`` says whether the broker may have got the
        request), ``RequestTimedOutError``, ``ClientClosedError``.
        """
        frames = self._frames
        if (wait_s := self._throttle.wait_s(call)) > 0:
            self._owner.closing.wait(wait_s)
        if frames is None:
            return self.grpc.call(call, request, timeout_s)
        deadline = time.monotonic() + timeout_s
        sock = frames.idle_socket() or self._new_socket(frames, deadline)
        return frames.call(sock, call, request, max(deadline - time.monotonic(), 0.001))

    def begin(
        self,
        call: UnaryCall[Request, Response],
        request: Request,
        timeout_s: float,
        pending: PendingCall[Response],
        *,
        cancellable: bool = False,
    ) -> None:
        """Start a call without waiting for it; ``pending`` receives its outcome.

        Over an idle connection it is sent in the current thread, without blocking. ``cancellable`` announces a
        possible cancellation before its end. Raises ``ClientClosedError``.
        """
        if (wait_s := self._throttle.wait_s(call)) > 0:
            self._begin_later(wait_s, call, request, timeout_s, pending, cancellable=cancellable)
            return
        frames = self._frames
        if frames is not None:
            with Uninterrupted():
                sock = frames.idle_socket()
                if sock is not None:
                    frames.begin(sock, call, request, timeout_s, pending)
                    return
        if frames is None and self.grpc.is_open:
            self.grpc.begin(call, request, timeout_s, pending, cancellable=cancellable)
            return
        deadline = time.monotonic() + timeout_s

        def work() -> None:
            try:
                if frames is None:
                    self.grpc.begin(call, request, timeout_s, pending, cancellable=cancellable)
                else:
                    opened = self._new_socket(frames, deadline)
                    frames.begin(opened, call, request, max(deadline - time.monotonic(), 0.001), pending)
            except MillraceError as error:
                pending.complete(None, error)

        if not self._owner.threads.start(work):
            raise ClientClosedError("the client is closed: make a new one")

    def _begin_later(
        self,
        wait_s: float,
        call: UnaryCall[Request, Response],
        request: Request,
        timeout_s: float,
        pending: PendingCall[Response],
        *,
        cancellable: bool,
    ) -> None:
        """Start a call after the throttle time of the broker's quotas. Raises ``ClientClosedError``."""

        def work() -> None:
            self._owner.closing.wait(wait_s)
            if pending.is_done:
                return
            try:
                self.begin(call, request, timeout_s, pending, cancellable=cancellable)
            except MillraceError as error:
                pending.complete(None, error)

        if not self._owner.threads.start(work):
            raise ClientClosedError("the client is closed: make a new one")

    # --- connecting -----------------------------------------------------------------------------------------------

    def _new_socket(self, frames: FrameTransport, deadline: float) -> FrameSocket:
        """Open a connection.

        Raises ``BrokerUnavailableError`` if no broker answers, ``ThrottledError`` if it has too many connections,
        ``InvalidConfigError`` at a listener for gRPC.
        """
        try:
            return frames.new_socket(max(min(deadline - time.monotonic(), self._connect_s), 0.001))
        except OSError as error:
            raise not_reached(self._address, str(error) or "it did not answer in time") from error
        except InvalidRequestError as error:
            raise self._wrong_listener(error) from error

    @property
    def _connect_s(self) -> float:
        return min(self._config.socket_connection_setup_timeout_ms / 1000, _GREETING_TIMEOUT_S)

    def _greet(self, timeout_s: float) -> tuple[FrameSocket, pb.HelloResponse]:
        """Connect after the wait of ``reconnect.backoff.ms``.

        Raises the errors of ``frame_socket.connect``, ``ClientClosedError``.
        """
        deadline = time.monotonic() + timeout_s
        begun = self._wait_to_reconnect(timeout_s)
        try:
            opened = self._connect(max(deadline - begun, 0.001))
        except (OSError, MillraceError):
            self._reconnects.failed(begun)
            raise
        self._reconnects.connected()
        return opened

    def _wait_to_reconnect(self, timeout_s: float) -> float:
        """Wait until the broker may be tried again, and return the time. Raises ``TimeoutError`` if that is too late.

        Raises ``ClientClosedError`` if the client is closed meanwhile.
        """
        wait_s = self._reconnects.wait_s
        if wait_s > 0 and self._owner.closing.wait(min(wait_s, timeout_s)):
            raise ClientClosedError("the client is closed: make a new one")
        if wait_s >= timeout_s:
            raise TimeoutError(f"the next attempt to connect is in {wait_s - timeout_s:.1f} s (reconnect.backoff.ms)")
        return time.monotonic()

    def _connect(self, timeout_s: float) -> tuple[FrameSocket, pb.HelloResponse]:
        hello = pb.HelloRequest(
            client_id=self._config.client_id,
            client_software_name=_SOFTWARE_NAME,
            client_software_version=_software_version(),
        )
        tls = self._owner.tls
        return connect(
            self._host,
            self._port,
            hello,
            tls=None if tls is None else tls.current().context,
            stores=self._config,
            credentials=self._owner.credentials,
            timeout_s=timeout_s,
            response_bytes_max=self._response_bytes_max,
        )

    def _wrong_listener(self, error: InvalidRequestError) -> MillraceError:
        """Explain an answer that is not in Kafka's framing. If it is gRPC's, name the right addresses."""
        request = pb.ApiVersionsRequest(
            client_software_name=_SOFTWARE_NAME, client_software_version=_software_version()
        )
        try:
            broker = self.grpc.call(_API_VERSIONS, request, self._connect_s)
        except MillraceError:
            return error
        right = " or ".join(_host_port(each) for each in broker.endpoints if each.protocol == _KAFKA)
        return InvalidConfigError(
            f"{self._address} is the address of broker {broker.broker_id} for gRPC: set bootstrap.servers={right}, "
            "or transport=grpc"
        )

    def _find_grpc(self) -> str:
        """Return the address of the broker's listener for gRPC, on the host of this address if there are several."""
        try:
            sock, hello = self._greet(self._connect_s)
        except OSError as error:
            is_closed = isinstance(error, ConnectionResetError | BrokenPipeError)
            if is_closed and self._owner.tls is None and wants_tls(self._host, self._port, _TLS_PROBE_S):
                raise SslAuthenticationError(f"{self._address}: {NEEDS_TLS}") from None
            raise not_reached(self._address, str(error) or "it did not answer in time") from error
        except InvalidRequestError:
            return self._address  # not an answer in Kafka's framing: this is the listener for gRPC
        sock.close()
        found = [each for each in hello.endpoints if each.protocol == _GRPC]
        if not found:
            raise InvalidConfigError(
                f"the broker at {self._address} advertises no listener for gRPC, which transport=grpc needs: "
                "add GRPC://host:port to its listeners (and advertised.listeners)"
            )
        return _host_port(next((each for each in found if each.host == self._host), found[0]))

    def let_go(self) -> None:
        """Close this process' descriptors; the connections belong to the parent."""
        if self._frames is not None:
            self._frames.let_go()

    def close(self) -> None:
        """Close all connections; calls in flight end with ``ClientClosedError``."""
        self._is_closed = True
        if self._frames is not None:
            self._frames.close()
        self.grpc.close()


def _host_port(endpoint: pb.Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"
