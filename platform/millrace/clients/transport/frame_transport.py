"""Calls as frames to one broker.

Each call in flight has a connection of its own.

Invariants

- One call at a time uses a connection; after a failed or cancelled call it is closed.
- An idle connection is used only if it has nothing to read, so that the broker's close is noticed before a request is
  sent. Connections that were idle for most of the broker's limit are closed on this side.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from millrace.clients.transport.calls import (
    PendingCall,
    Received,
    Request,
    Response,
    Throttle,
    UnaryCall,
    broken_off,
    not_reached,
)
from millrace.clients.transport.frame_receiver import Receiver, Reception
from millrace.clients.transport.frame_socket import FrameSocket
from millrace.errors import (
    ClientClosedError,
    MessageTooLargeError,
    MillraceError,
    RequestTimedOutError,
    UnknownServerError,
    error_of,
)
from millrace.protocol import frames

_IDLE_PART: Final = 0.75
"""Part of the broker's idle limit after which idle connections are closed here."""


class Limits(Protocol):
    """Limits that the broker announced."""

    @property
    def request_bytes_max(self) -> int:
        """Maximum size of a request message."""

    @property
    def idle_ms_max(self) -> int:
        """Time after which the broker closes idle connections."""


class FrameTransport:
    """Connections to one broker. Thread safe; ``connect`` creates one and returns the broker's limits."""

    def __init__(
        self,
        address: str,
        receiver: Receiver,
        connect: Callable[[float], tuple[FrameSocket, Limits]],
        throttle: Throttle,
    ) -> None:
        self._address = address
        self._receiver = receiver
        self._connect = connect
        self._throttle = throttle
        self._lock = threading.Lock()
        self._idle: deque[FrameSocket] = deque()
        self._busy: set[FrameSocket] = set()
        self._pending: set[PendingCall[Any]] = set()
        self._request_bytes_max = 2**32
        self._idle_s_max = float("inf")
        self._is_closed = False

    # --- connections ----------------------------------------------------------------------------------------------

    def idle_socket(self) -> FrameSocket | None:
        """Return a usable idle connection, if any. Raises ``ClientClosedError``."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise ClientClosedError("the client is closed: make a new one")
                if not self._idle:
                    return None
                sock = self._idle.pop()
                self._busy.add(sock)
            if sock.is_usable and time.monotonic() - sock.idle_since < self._idle_s_max:
                return sock
            self._drop(sock)

    def new_socket(self, timeout_s: float) -> FrameSocket:
        """Open a new connection; raises the errors of ``frame_socket.connect``, ``ClientClosedError``."""
        sock, limits = self._connect(timeout_s)
        with self._lock:
            self._request_bytes_max = limits.request_bytes_max
            self._idle_s_max = limits.idle_ms_max / 1000 * _IDLE_PART
            if not self._is_closed:
                self._busy.add(sock)
                return sock
        sock.close()
        raise ClientClosedError("the client is closed: make a new one")

    def _put_back(self, sock: FrameSocket) -> None:
        now = time.monotonic()
        sock.idle_since = now
        stale: list[FrameSocket] = []
        with self._lock:
            if sock.is_spent or self._is_closed:
                stale.append(sock)
            else:
                self._busy.discard(sock)
                self._idle.append(sock)
            while self._idle and now - self._idle[0].idle_since >= self._idle_s_max:
                stale.append(self._idle.popleft())
        for each in stale:
            self._drop(each)

    def _drop(self, sock: FrameSocket) -> None:
        with self._lock:
            self._busy.discard(sock)
        self._receiver.forget(sock)
        sock.close()

    # --- calls ----------------------------------------------------------------------------------------------------

    def call(
        self, sock: FrameSocket, call: UnaryCall[Request, Response], request: Request, timeout_s: float
    ) -> Response:
        """Make a call on a connection, and wait for it. Raises the broker's error, ``BrokerUnavailableError``."""
        deadline = time.monotonic() + timeout_s
        failure: Exception | None = None
        try:
            self._send(sock, call, request, timeout_s)
            is_over = False
            while not is_over:
                if not sock.wait(deadline):
                    raise RequestTimedOutError(self._too_late(call, timeout_s))
                is_over = sock.advance()
        except Exception as error:  # noqa: BLE001 - distinguished below
            failure = error
        except BaseException:  # an interrupt
            self._drop(sock)
            raise
        return self._ended(sock, call, failure)

    def begin(
        self,
        sock: FrameSocket,
        call: UnaryCall[Request, Response],
        request: Request,
        timeout_s: float,
        pending: PendingCall[Response],
    ) -> None:
        """Make a call on a connection, and pass its outcome to ``pending``. Raises nothing."""

        def on_ready(failure: Exception | None, *, is_expired: bool = False) -> None:
            self._pending.discard(pending)
            if is_expired and failure is not None:
                failure = RequestTimedOutError(self._too_late(call, timeout_s))
            try:
                response = self._ended(sock, call, failure)
            except MillraceError as error:
                pending.complete(None, error)
            else:
                pending.complete(response, None)

        reception = Reception(sock, time.monotonic() + timeout_s, on_ready)
        self._pending.add(pending)
        try:
            self._send(sock, call, request, timeout_s)
        except Exception as error:  # noqa: BLE001 - the error is the call's outcome
            on_ready(error)
            return
        if not pending.aborts_by(sock.shut):
            sock.shut()
        if not self._receiver.receive(reception):
            on_ready(ConnectionResetError("the client was closed"))

    def _send(self, sock: FrameSocket, call: UnaryCall[Request, Any], request: Request, timeout_s: float) -> None:
        message = call.encode(request)
        if len(message) > self._request_bytes_max:
            raise MessageTooLargeError(
                f"a request of {len(message)} bytes is larger than max {self._request_bytes_max}, the limit "
                f"of the broker at {self._address} (socket.request.max.bytes)"
            )
        sock.start(call.api_key, message, int(timeout_s * 1000))

    def _ended(self, sock: FrameSocket, call: UnaryCall[Any, Response], failure: Exception | None) -> Response:
        """Return or raise the outcome of a call, and put its connection back, or close it."""
        if failure is None:
            head, body = sock.take()
            is_sent = True
            if head.kind is frames.Kind.GOODBYE:
                self._drop(sock)
                failure = ConnectionResetError(str(body, "utf-8", "replace"))
                is_sent = False
            else:
                self._put_back(sock)
                return self._response(call, head.error, body)
        else:
            is_sent = sock.is_sent
            self._drop(sock)
        if self._is_closed:
            raise ClientClosedError("the client was closed during the call") from failure
        if isinstance(failure, MillraceError):
            raise failure
        if isinstance(failure, OSError):
            raise (broken_off if is_sent else not_reached)(self._address, str(failure)) from failure
        raise UnknownServerError(f"the call {call.name} failed: {failure!r}") from failure

    def _response(self, call: UnaryCall[Any, Response], error: int, body: Received) -> Response:
        if error:
            raise error_of(error, str(body, "utf-8", "replace"))
        return self._throttle.decoded(call, body)

    def _too_late(self, call: UnaryCall[Any, Any], timeout_s: float) -> str:
        return f"the broker at {self._address} did not answer {call.name} within {timeout_s * 1000:.0f} ms"

    def let_go(self) -> None:
        """Close only the descriptors, in a forked process: no lock, and no shutdown that affects the parent."""
        for sock in [*self._idle, *self._busy]:
            sock.let_go()

    def close(self) -> None:
        """Close all connections; calls in flight end with ``ClientClosedError``."""
        with self._lock:
            self._is_closed = True
            idle, busy = list(self._idle), list(self._busy)
            self._idle.clear()
        for sock in idle:
            self._drop(sock)
        for sock in busy:
            sock.shut()
        while self._pending:
            pending = self._pending.pop()
            pending.complete(None, ClientClosedError("the client was closed during the call"))
