"""Connection to each broker: frames if it supports them, gRPC otherwise.

Invariants

- Over gRPC the broker announces its frame port and its identity. A frame connection is used only if the same broker
  of the same cluster answers there. Otherwise calls use gRPC, and frames are tried again after
  ``metadata.max.age.ms``.
- If a broker's frame port is not reachable, the client asks over gRPC for the current port, because the broker may
  have restarted.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Final

from millrace.clients.transport.call_threads import CallThreads
from millrace.clients.transport.calls import PendingCall, Request, Response, UnaryCall, not_reached, unary
from millrace.clients.transport.frame_receiver import Receiver
from millrace.clients.transport.frame_socket import FrameSocket, connect
from millrace.clients.transport.frame_transport import FrameTransport
from millrace.clients.transport.grpc_transport import GrpcTransport
from millrace.config.client import ClientConfig, ConsumerConfig, Transport
from millrace.errors import (
    ClientClosedError,
    InvalidRequestError,
    MillraceError,
    ThrottledError,
    UnsupportedVersionError,
)
from millrace.protocol import millrace_pb2 as pb

logger = logging.getLogger(__name__)

_MESSAGE_OVERHEAD_BYTES: Final = 64 * 2**20
"""Margin of a response above ``fetch.max.bytes``, because its first batch is sent whatever its size."""
_API_VERSIONS: Final = unary(lambda stub: stub.ApiVersions)
_HAS_EPOLL: Final = hasattr(select, "epoll") and hasattr(os, "eventfd")
_GREETING_TIMEOUT_S: Final = 5.0
"""Maximum wait for a frame port that does not answer, before calls use gRPC."""


@cache
def _software_version() -> str:
    return version("millrace")


class _WrongBrokerError(Exception):
    """Error for a port where another broker answers than the one that announced it."""


class Links:
    """Links of one client to all known brokers, and their shared threads. Thread safe."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._links: dict[str, Link] = {}
        self._is_closed = False
        self.threads = CallThreads("millrace-call")
        self._receiver: Receiver | None = None
        _living.add(self)

    def start_anew(self) -> None:
        """Forget the connections and threads in a forked process, because they belong to the parent."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.let_go()
        self._lock = threading.Lock()
        self.threads = CallThreads("millrace-call")
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
        self._host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        self._config = config
        self._owner = owner
        fetch_bytes = config.fetch_max_bytes if isinstance(config, ConsumerConfig) else 0
        self._response_bytes_max = fetch_bytes + _MESSAGE_OVERHEAD_BYTES
        self.grpc: Final = GrpcTransport(address, config, self._response_bytes_max, owner.threads)
        self._lock = threading.Lock()
        self._frames: FrameTransport | None = None
        self._broker: pb.ApiVersionsResponse | None = None
        # Use gRPC if frames are not supported here, or not configured.
        self._grpc_until = float("inf") if config.transport is Transport.GRPC or not _HAS_EPOLL else 0.0
        self._is_closed = False

    # --- calls ----------------------------------------------------------------------------------------------------

    def call(self, call: UnaryCall[Request, Response], request: Request, timeout_s: float) -> Response:
        """Make a call and wait for it.

        Raises the broker's error, ``BrokerUnavailableError`` (its ``was_sent`` says whether the broker may have got the
        request), ``RequestTimedOutError``, ``ClientClosedError``.
        """
        deadline = time.monotonic() + timeout_s
        frames = self._frames
        sock = frames.idle_socket() if frames is not None else None
        if frames is None or sock is None:
            found = self._socket(deadline)
            if found is None:
                return self.grpc.call(call, request, max(deadline - time.monotonic(), 0.001))
            frames, sock = found
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
        frames = self._frames
        sock = frames.idle_socket() if frames is not None else None
        if frames is not None and sock is not None:
            frames.begin(sock, call, request, timeout_s, pending)
            return
        if self._is_grpc:
            self.grpc.begin(call, request, timeout_s, pending, cancellable=cancellable)
            return
        deadline = time.monotonic() + timeout_s

        def work() -> None:
            try:
                found = self._socket(deadline)
                left_s = max(deadline - time.monotonic(), 0.001)
                if found is None:
                    self.grpc.begin(call, request, left_s, pending, cancellable=cancellable)
                else:
                    found[0].begin(found[1], call, request, left_s, pending)
            except MillraceError as error:
                pending.complete(None, error)

        if not self._owner.threads.start(work):
            raise ClientClosedError("the client is closed: make a new one")

    # --- choosing -------------------------------------------------------------------------------------------------

    @property
    def _is_grpc(self) -> bool:
        return time.monotonic() < self._grpc_until

    def _socket(self, deadline: float) -> tuple[FrameTransport, FrameSocket] | None:
        """Return an idle or new frame connection, or None for gRPC.

        Raises ``BrokerUnavailableError`` if no broker answers, ``ThrottledError`` if it has too many connections.
        """
        if self._is_grpc:
            return None
        frames = self._frames
        if frames is not None:
            sock = frames.idle_socket()
            try:
                return frames, sock or frames.new_socket(self._connect_s(deadline))
            except ThrottledError:
                raise
            except (OSError, _WrongBrokerError, InvalidRequestError, UnsupportedVersionError) as error:
                logger.debug("%s does not answer at its known port for frames: %s", self._address, error)
        return self._find(deadline, instead_of=frames)

    def _connect_s(self, deadline: float) -> float:
        longest_s = min(self._config.socket_connection_setup_timeout_ms / 1000, _GREETING_TIMEOUT_S)
        return max(min(deadline - time.monotonic(), longest_s), 0.001)

    def _find(self, deadline: float, instead_of: FrameTransport | None) -> tuple[FrameTransport, FrameSocket] | None:
        """Ask the broker for its frame port, and connect; one thread at a time."""
        with self._lock:
            if self._is_grpc:
                return None
            frames = self._frames
            if frames is not None and frames is not instead_of:  # another thread was faster
                return frames, frames.idle_socket() or self._another(frames, deadline)
            left_s = max(deadline - time.monotonic(), 0.001)
            broker = self.grpc.call(_API_VERSIONS, self._api_versions(), left_s, keep=False)
            if not broker.frame_port:
                logger.debug("the broker at %s offers no port for frames", self._address)
                self._fall_back()
                return None
            found = FrameTransport(
                self._address, self._owner.receiver(), lambda timeout_s: self._connected(broker, timeout_s)
            )
            try:
                sock = found.new_socket(self._connect_s(deadline))
            except ThrottledError:
                raise
            except (OSError, MillraceError, _WrongBrokerError) as error:
                found.close()
                logger.warning(
                    "calls to %s go over gRPC, because its port for frames, %d, fails: %s",
                    self._address,
                    broker.frame_port,
                    error,
                )
                self._fall_back()
                return None
            if self._is_closed:
                found.close()
                raise ClientClosedError("the client is closed: make a new one")
            previous, self._frames = self._frames, found
            self.grpc.rest()
        if previous is not None:
            previous.retire()
        return found, sock

    def _another(self, frames: FrameTransport, deadline: float) -> FrameSocket:
        try:
            return frames.new_socket(self._connect_s(deadline))
        except (OSError, _WrongBrokerError) as error:
            raise not_reached(self._address, str(error)) from error

    def _fall_back(self) -> None:
        self._grpc_until = time.monotonic() + self._config.metadata_max_age_ms / 1000

    def _connected(self, broker: pb.ApiVersionsResponse, timeout_s: float) -> tuple[FrameSocket, pb.HelloResponse]:
        hello = pb.HelloRequest(
            client_id=self._config.client_id,
            client_software_name="millrace",
            client_software_version=_software_version(),
        )
        sock, answer = connect(
            self._host,
            broker.frame_port,
            hello,
            timeout_s=timeout_s,
            response_bytes_max=self._response_bytes_max,
        )
        if (answer.cluster_id, answer.broker_id) != (broker.cluster_id, broker.broker_id):
            sock.close()
            raise _WrongBrokerError(
                f"broker {answer.broker_id} of cluster {answer.cluster_id} answers, not broker {broker.broker_id} of "
                f"cluster {broker.cluster_id}: is the port forwarded to another one? (advertised.frame.port)"
            )
        return sock, answer

    def _api_versions(self) -> pb.ApiVersionsRequest:
        return pb.ApiVersionsRequest(client_software_name="millrace", client_software_version=_software_version())

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
