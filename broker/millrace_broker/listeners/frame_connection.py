"""Server side of a frame connection, which handles one request at a time.

Invariants

- Memory for a message is taken from the budget before the message is received. Bytes that arrive with its head are
  excepted, at most the listener's buffer. While the connection waits for memory, it reads nothing.
- A request is answered exactly once, unless the connection is lost, which cancels the handler. Both leases and the
  place among the requests in progress are given back either way. The response's lease ends once the kernel has all of
  it.
- A handler runs at once in the event loop up to its first wait. Only a handler that waits gets a task (``small_work``).
- While a request is in progress, later requests are not parsed, and not received beyond one buffer.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from typing import Any, Final, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from millrace.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    MillraceError,
    UnsupportedVersionError,
)
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import ClientAddress, known_error
from millrace_broker.broker import Broker
from millrace_broker.listeners.frame_writer import FrameWriter
from millrace_broker.listeners.handling import Handling
from millrace_broker.listeners.shared import RECEPTION_TIMEOUT_S, UNARY_METHODS
from millrace_broker.network.sockets import keep_alive
from millrace_broker.quotas import BROKER_SOFTWARE_NAME, AdmittedCall, CallClass, class_of

_logger = logging.getLogger(__name__)

_HELLO_BYTES_MAX: Final = 16 * 1024


class _State(Enum):
    """State of a connection."""

    GREETING = auto()
    IDLE = auto()
    HEAD = auto()
    RECEIVING = auto()
    SERVING = auto()
    SENDING = auto()
    REFUSED = auto()


_LIMITS_S: Final = {
    _State.GREETING: 10.0,
    _State.HEAD: RECEPTION_TIMEOUT_S,
    _State.RECEIVING: RECEPTION_TIMEOUT_S,
    _State.SENDING: 60.0,  # without any byte taken by the client
    _State.REFUSED: 2.0,  # input is discarded meanwhile, so that the client reads the reason
}
"""Seconds that a connection may stay in a state. Handlers have their own deadlines; the configuration limits IDLE."""


class _Request(NamedTuple):
    """Request whose head has been read."""

    name: bytes
    deadline_ms: int
    message_bytes: int


class ConnectionOwner(Protocol):
    """Listener that owns a connection."""

    @property
    def name(self) -> str:
        """Name of the listener."""
        ...

    @property
    def broker(self) -> Broker:
        """The broker that answers."""
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of all connections."""
        ...

    @property
    def buffer(self) -> memoryview:
        """Receive buffer shared by connections that have no message buffer of their own."""
        ...

    @property
    def message_bytes_max(self) -> int:
        """Size of the largest request."""
        ...

    @property
    def idle_s_max(self) -> float:
        """Seconds that a connection may be idle."""
        ...

    def hello(self) -> pb.HelloResponse:
        """Return the first message for a client."""
        ...

    def opened(self, connection: FrameConnection) -> None:
        """Register a connection."""
        ...

    def closed(self, connection: FrameConnection) -> None:
        """Remove a closed connection."""
        ...

    def count(self, connection: FrameConnection, *, is_broker: bool) -> None:
        """Count a connection. Raises ``ThrottledError``."""
        ...


class FrameConnection(asyncio.BufferedProtocol):
    """Broker's end of one connection. All of it runs in the event loop."""

    def __init__(self, listener: ConnectionOwner) -> None:
        self._listener = listener
        self._broker = listener.broker
        self._loop = listener.loop
        self._state = _State.GREETING
        self._since = self._loop.time()
        self._rest = b""  # received but not parsed: a part of a head, or the next request
        self._request: _Request | None = None
        self._body: bytearray | None = None
        self._view = memoryview(b"")
        self._received_bytes = 0
        self._skip_bytes = 0
        self._failure: MillraceError | None = None  # the answer to a message that is being discarded
        self._is_greeted = False
        self._is_broker = False  # whether the peer is a broker
        self._is_counted = False
        self._call: AdmittedCall | None = None  # the call in progress, until its answer was sent
        self._is_stopping = False
        self._is_lost = False
        self._has_stopped_reading = False
        self._admitting: asyncio.Task[None] | None = None

    # --- the transport's calls --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the new connection. The client is still unknown."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._writer = FrameWriter(transport)
        self._client = ClientAddress(*transport.get_extra_info("peername")[:2])
        self._handling = Handling(self._broker, self._listener.name, self._client, self._answer)
        keep_alive(transport.get_extra_info("socket"))
        self._listener.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to receive into: the current message's, or the shared one."""
        if self._body is not None:
            return self._view[self._received_bytes :]
        return self._listener.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes received into the buffer."""
        if self._body is not None:
            self._received_bytes += nbytes
            if self._received_bytes == len(self._body):
                body, self._body, self._view = self._body, None, memoryview(b"")
                self._serve(body)
                self._go_on()
            return
        if self._state is _State.REFUSED:
            return
        data = self._listener.buffer[:nbytes]
        if self._skip_bytes:
            data = self._skipped(data)
        if self._rest:
            data, self._rest = memoryview(self._rest + data), b""
        self._consume(data)

    def eof_received(self) -> bool:
        """Close the connection, because the client no longer waits for an answer."""
        return False

    def pause_writing(self) -> None:
        """Pause the writer, because the kernel takes no more bytes."""
        self._writer.pause()

    def resume_writing(self) -> None:
        """Resume the writer, because the kernel has all bytes of the transport."""
        self._writer.resume()
        if self._state is _State.SENDING:
            self._since = self._loop.time()
            self._sent()
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the call in progress and release all resources."""
        self._is_lost = True
        if self._admitting is not None:
            self._admitting.cancel()  # ``_admitted`` releases them
        elif self._handling.is_waiting:
            self._handling.cancel()  # ``_answer`` releases them
        else:
            self._end_call()
            self._release()
        self._uncount()
        self._body = None
        self._view = memoryview(b"")
        self._writer.drop()
        self._listener.closed(self)

    # --- receiving ------------------------------------------------------------------------------------------------

    def _consume(self, data: memoryview) -> None:
        """Parse requests from the received bytes, as many as can be answered at once. Keep the rest."""
        position = 0
        while position < len(data) and self._is_ready:
            try:
                used = self._take(data[position:] if position else data)
            except MillraceError as error:
                self._refuse(error)
                return
            if not used:
                break
            position += used
        if position == len(data) or self._is_over:
            return
        self._rest = bytes(data[position:])
        if not self._is_ready:
            self._stop_reading()
        elif self._state is _State.IDLE:
            self._enter(_State.HEAD)

    def _go_on(self) -> None:
        """Parse the bytes received during the last request."""
        if self._is_ready and not self._is_over:
            if self._rest:
                data, self._rest = memoryview(self._rest), b""
                self._consume(data)
            if self._is_ready:
                self._read_on()

    @property
    def _is_ready(self) -> bool:
        """Whether a request head comes next."""
        return self._state in (_State.GREETING, _State.IDLE, _State.HEAD)

    @property
    def _is_over(self) -> bool:
        return self._is_lost or self._transport.is_closing()

    def _take(self, data: memoryview) -> int:
        """Process the first element of ``data``. Return its size, or 0 if ``data`` is too short.

        Raises the error that ends the connection.
        """
        if not self._is_greeted:
            if len(data) < frames.GREETING_BYTES:
                return 0
            frames.check_greeting(data)
            self._is_greeted = True
            return frames.GREETING_BYTES
        if len(data) < frames.REQUEST_HEAD_BYTES:
            return 0
        head = frames.read_request_head(data)
        start = frames.REQUEST_HEAD_BYTES + head.name_bytes
        is_hello = self._state is _State.GREETING
        limit_bytes = _HELLO_BYTES_MAX if is_hello else self._listener.message_bytes_max
        if head.message_bytes > limit_bytes:
            raise MessageTooLargeError(
                f"a request of {head.message_bytes} bytes is larger than max {limit_bytes} (socket.request.max.bytes)"
            )
        if len(data) < start:
            return 0
        end = start + head.message_bytes
        if is_hello:
            return self._hello(data, start, end)
        request = _Request(bytes(data[frames.REQUEST_HEAD_BYTES : start]), head.deadline_ms, head.message_bytes)
        self._begin(request, data[start:end])
        return min(len(data), end)

    def _hello(self, data: memoryview, start: int, end: int) -> int:
        if len(data) < end:
            return 0
        try:
            hello = pb.HelloRequest.FromString(bytes(data[start:end]))
        except DecodeError as error:
            raise InvalidRequestError(f"a connection must begin with a HelloRequest: {error}") from None
        self._handling.client_id = hello.client_id
        _logger.debug("%s has client id %r, runs %s", self._client, hello.client_id, hello.client_software_name)
        self._is_broker = hello.client_software_name == BROKER_SOFTWARE_NAME
        self._listener.count(self, is_broker=self._is_broker)
        self._is_counted = True
        answer = self._listener.hello().SerializeToString()
        self._transport.write(frames.greeting() + frames.response_head(len(answer)) + answer)
        self._enter(_State.IDLE)
        return end

    def _begin(self, request: _Request, part: memoryview) -> None:
        """Admit a request. Serve it if ``part`` is its whole message, else receive the rest."""
        self._request = request
        call_class = class_of(request.name.decode("ascii", "replace"), is_broker=self._is_broker)
        try:
            call = self._call = self._broker.admission.begin(self, call_class)
        except MillraceError as error:
            # The reserve has no place for a connection that makes client calls.
            room = self._broker.admission.connections.room_of(self)
            self._is_stopping |= call_class is CallClass.CLIENT and room is CallClass.CONTROL
            self._throw_away(request.message_bytes - len(part), error)
            return
        if call.request_lease.take_now(request.message_bytes):
            self._receive(part)
            return
        self._enter(_State.SERVING)
        self._stop_reading()
        self._admitting = self._loop.create_task(call.take_request_memory(request.message_bytes))
        held = bytes(part)
        self._admitting.add_done_callback(lambda task: self._admitted(task, held))

    def _admitted(self, task: asyncio.Task[None], held: bytes) -> None:
        self._admitting = None
        if task.cancelled() or self._is_over:
            self._end_call()
            self._release()
            self._uncount()
            return
        self._receive(memoryview(held))
        if self._body is not None:
            self._read_on()
        self._go_on()

    def _receive(self, part: memoryview) -> None:
        assert self._request is not None
        size_bytes = self._request.message_bytes
        if len(part) == size_bytes:
            self._serve(part)
            return
        self._enter(_State.RECEIVING)
        self._body = bytearray(size_bytes)
        self._view = memoryview(self._body)
        self._view[: len(part)] = part
        self._received_bytes = len(part)

    def _throw_away(self, size_bytes: int, failure: MillraceError) -> None:
        """Answer with an error after the rest of the message is discarded."""
        self._skip_bytes, self._failure = size_bytes, failure
        self._enter(_State.RECEIVING)
        if not size_bytes:
            self._finish(None, failure)

    def _skipped(self, data: memoryview) -> memoryview:
        skipped = min(len(data), self._skip_bytes)
        self._skip_bytes -= skipped
        if not self._skip_bytes:
            failure, self._failure = self._failure, None
            self._finish(None, failure)
        return data[skipped:]

    def _stop_reading(self) -> None:
        if not self._has_stopped_reading and not self._is_over:
            self._has_stopped_reading = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._has_stopped_reading and not self._is_over:
            self._has_stopped_reading = False
            self._transport.resume_reading()

    # --- serving --------------------------------------------------------------------------------------------------

    def _serve(self, message: Any) -> None:
        assert self._request is not None
        assert self._call is not None
        self._enter(_State.SERVING)
        method = UNARY_METHODS.get(self._request.name)
        if method is None:
            name = self._request.name.decode("ascii", "replace")
            self._finish(None, UnsupportedVersionError(f"this broker does not support call {name}: it may be older"))
            return
        self._handling.start(method, message, self._request.deadline_ms, self._call)

    def _answer(self, response: Any, failure: MillraceError | None) -> None:
        """Answer when the handler has ended, with or without a wait."""
        self._finish(response, failure)
        self._go_on()

    # --- answering ------------------------------------------------------------------------------------------------

    def _finish(self, response: Any, failure: MillraceError | None) -> None:
        """Send the answer. The connection is ready for the next request after that."""
        self._end_call()
        if self._is_over:
            self._release()
            self._uncount()
            return
        if failure is None:
            try:
                body: bytes = response.SerializeToString()
            except Exception as error:  # noqa: BLE001 - a response that cannot be written is the broker's failure
                failure = known_error(error)
        if failure is not None:
            body = failure.message.encode()
        head = frames.response_head(len(body), failure.code if failure is not None else 0)
        self._enter(_State.SENDING)
        self._writer.write(head, body)
        self._sent()

    def _sent(self) -> None:
        """Become ready for the next request, if the kernel has the whole response."""
        if not self._writer.is_idle or self._is_over:
            return
        self._release()
        self._enter(_State.IDLE)
        if self._is_stopping:
            self.say_goodbye()

    def _end_call(self) -> None:
        """Release the handler's resources. The answer is still to be sent."""
        self._request = None
        if self._call is not None:
            self._call.end()

    def _release(self) -> None:
        """Release the response's memory: the kernel has the answer, or the connection is lost."""
        call, self._call = self._call, None
        if call is not None:
            call.response_lease.release()

    def _uncount(self) -> None:
        if self._is_counted and self._call is None:
            self._is_counted = False
            self._broker.admission.connections.closed(self)

    def _refuse(self, error: MillraceError) -> None:
        """Send the error, and end the connection."""
        _logger.info("the connection from %s is refused: %s", self._client, error.message)
        text = error.message.encode()
        greeting = frames.greeting() if self._state is _State.GREETING else b""
        self._transport.write(greeting + frames.response_head(len(text), error.code) + text)
        if self._transport.can_write_eof() and not self._is_over:
            self._transport.write_eof()
        self._rest = b""
        self._enter(_State.REFUSED)
        self._read_on()

    # --- life -----------------------------------------------------------------------------------------------------

    def _enter(self, state: _State) -> None:
        self._state = state
        self._since = self._loop.time()

    @property
    def idle_since(self) -> float | None:
        """Loop time since when the connection is idle; None during a request."""
        return self._since if self._state is _State.IDLE else None

    def check(self, now: float) -> None:
        """Close the connection if it has been in its state for too long."""
        limit_s = self._listener.idle_s_max if self._state is _State.IDLE else _LIMITS_S.get(self._state)
        if limit_s is None or now - self._since < limit_s:
            return
        if self._state is _State.IDLE:
            self.say_goodbye()
            return
        if self._state is not _State.REFUSED:
            _logger.info("the connection from %s is closed: %s took too long", self._client, self._state.name.lower())
        self._transport.abort()

    def stop(self) -> None:
        """Close the connection as soon as no request is in progress."""
        self._is_stopping = True
        if self._state is _State.IDLE:
            self.say_goodbye()
        elif self._state in (_State.GREETING, _State.REFUSED):
            self._transport.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def cancel(self) -> None:
        """Cancel the request in progress, because its grace period is over."""
        if self._handling.is_waiting:
            self._handling.cancel()
        else:
            self._transport.abort()

    def say_goodbye(self) -> None:
        """Close an idle connection. The message tells a client that a request now on its way is not read."""
        self._uncount()
        text = b"the broker has closed an idle connection, or stops"
        self._transport.write(frames.response_head(len(text), 0, frames.Kind.GOODBYE) + text)
        self._transport.close()
