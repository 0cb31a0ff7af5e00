"""One connection for calls as frames: requests are received, handled and answered one at a time.

Invariants

- Memory for a message is taken from the budget before the message is received, but for what comes with its head (as
  much as the listener's buffer holds); while it waits for that, nothing more is read from the connection.
- A request is answered exactly once, unless the connection is lost, which cancels the handler. Both leases and the
  place among the requests in progress are given back either way, the response's once the kernel has all of it.
- A handler runs at once in the event loop up to its first wait; only one that waits gets a task (``small_work``).
- Requests that came while another is in progress are neither looked at nor received beyond one buffer.
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
from millrace_broker.api import known_error
from millrace_broker.broker import Broker
from millrace_broker.listeners.frame_writer import FrameWriter
from millrace_broker.listeners.handling import Handling
from millrace_broker.listeners.shared import RECEPTION_TIMEOUT_S, UNARY_METHODS, peer_name
from millrace_broker.network.sockets import keep_alive
from millrace_broker.quotas import BROKER_SOFTWARE_NAME, AdmittedCall, CallClass, class_of

_logger = logging.getLogger(__name__)

_HELLO_BYTES_MAX: Final = 16 * 1024


class _State(Enum):
    """What a connection is at."""

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
    _State.SENDING: 60.0,  # without the client's taking any of it
    _State.REFUSED: 2.0,  # in which what the client still sends is thrown away, so that it reads the reason
}
"""How long a connection may be at it; handlers have deadlines of their own, idle connections the configuration's."""


class _Request(NamedTuple):
    """A request whose head was read."""

    name: bytes
    deadline_ms: int
    message_bytes: int


class ConnectionOwner(Protocol):
    """The listener that a connection belongs to."""

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
        """Where all connections receive what has no buffer of its own."""
        ...

    @property
    def message_bytes_max(self) -> int:
        """The size of the largest request."""
        ...

    @property
    def idle_s_max(self) -> float:
        """How long a connection may be idle."""
        ...

    def hello(self) -> pb.HelloResponse:
        """Say what a client is told first."""
        ...

    def opened(self, connection: FrameConnection) -> None:
        """Take note that a client has connected."""
        ...

    def closed(self, connection: FrameConnection) -> None:
        """Take note that a connection has come to its end."""
        ...

    def count(self, connection: FrameConnection, *, is_broker: bool) -> None:
        """Count a connection. Raises ``ThrottledError``."""
        ...


class FrameConnection(asyncio.BufferedProtocol):
    """The broker's end of one connection. All of it happens in the event loop."""

    def __init__(self, listener: ConnectionOwner) -> None:
        self._listener = listener
        self._broker = listener.broker
        self._loop = listener.loop
        self._state = _State.GREETING
        self._since = self._loop.time()
        self._rest = b""  # what came and was not looked at yet: a part of a head, or another request
        self._request: _Request | None = None
        self._body: bytearray | None = None
        self._view = memoryview(b"")
        self._received_bytes = 0
        self._skip_bytes = 0
        self._failure: MillraceError | None = None  # what a message that is being thrown away is answered with
        self._is_greeted = False
        self._is_broker = False  # the other end is one
        self._is_counted = False
        self._call: AdmittedCall | None = None  # the one in progress, until its answer was sent
        self._is_stopping = False
        self._is_lost = False
        self._has_stopped_reading = False
        self._admitting: asyncio.Task[None] | None = None

    # --- the transport's calls --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected; nothing is known of it yet."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._writer = FrameWriter(transport)
        self._peer = peer_name(transport.get_extra_info("peername"))
        self._handling = Handling(self._broker, self._peer, self._answer)
        keep_alive(transport.get_extra_info("socket"))
        self._listener.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to receive: the message that is coming, or the buffer of all connections."""
        if self._body is not None:
            return self._view[self._received_bytes :]
        return self._listener.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes were received there."""
        if self._body is not None:
            self._received_bytes += nbytes
            if self._received_bytes == len(self._body):
                self._serve_body()
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
        """The client has closed its end: nobody waits for an answer any more."""
        return False

    def pause_writing(self) -> None:
        """The kernel does not take more at present."""
        self._writer.pause()

    def resume_writing(self) -> None:
        """The kernel has everything that was given to the transport."""
        self._writer.resume()
        if self._state is _State.SENDING:
            self._since = self._loop.time()
            self._sent()
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is in progress and give everything back."""
        self._is_lost = True
        if self._admitting is not None:
            self._admitting.cancel()  # ``_admitted`` gives back
        elif self._handling.is_waiting:
            self._handling.cancel()  # ``_answer`` gives back
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
        """Take requests from what came, as many as can be answered at once; keep what is left."""
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
        """Look at what has come meanwhile, once a request is done with."""
        if self._is_ready and not self._is_over:
            if self._rest:
                data, self._rest = memoryview(self._rest), b""
                self._consume(data)
            if self._is_ready:
                self._read_on()

    @property
    def _is_ready(self) -> bool:
        """Whether the next thing to come is a head."""
        return self._state in (_State.GREETING, _State.IDLE, _State.HEAD)

    @property
    def _is_over(self) -> bool:
        return self._is_lost or self._transport.is_closing()

    def _take(self, data: memoryview) -> int:
        """Begin with the first thing in ``data``, and return how much of it that is; 0 if there is too little of it.

        Raises what ends the connection.
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
            raise InvalidRequestError(f"a connection begins with a HelloRequest: {error}") from None
        _logger.debug("%s is %s", self._peer, hello.client_id or hello.client_software_name or "nameless")
        self._is_broker = hello.client_software_name == BROKER_SOFTWARE_NAME
        self._listener.count(self, is_broker=self._is_broker)
        self._is_counted = True
        answer = self._listener.hello().SerializeToString()
        self._transport.write(frames.greeting() + frames.response_head(len(answer)) + answer)
        self._enter(_State.IDLE)
        return end

    def _begin(self, request: _Request, part: memoryview) -> None:
        """Admit a request, and serve it if ``part`` is all of its message, else receive the rest."""
        self._request = request
        call_class = class_of(request.name.decode("ascii", "replace"), is_broker=self._is_broker)
        try:
            call = self._call = self._broker.admission.begin(self, call_class)
        except MillraceError as error:
            # A place of the reserve is for others than a connection that makes client calls.
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

    def _serve_body(self) -> None:
        body, self._body, self._view = self._body, None, memoryview(b"")
        self._serve(body)

    def _throw_away(self, size_bytes: int, failure: MillraceError) -> None:
        """Answer with an error once the rest of the message is out of the way."""
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
            self._finish(None, UnsupportedVersionError(f"this broker knows no call {name}: it is older, or not for it"))
            return
        self._handling.start(method, message, self._request.deadline_ms, self._call)

    def _answer(self, response: Any, failure: MillraceError | None) -> None:
        """A handler has come to its end, at once or after it waited."""
        self._finish(response, failure)
        self._go_on()

    # --- answering ------------------------------------------------------------------------------------------------

    def _finish(self, response: Any, failure: MillraceError | None) -> None:
        """Answer, and be ready for the next request once that has been sent."""
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
        """Be ready for the next request, if the kernel has the whole response."""
        if not self._writer.is_idle or self._is_over:
            return
        self._release()
        self._enter(_State.IDLE)
        if self._is_stopping:
            self._say_goodbye()

    def _end_call(self) -> None:
        """The handler has ended; the answer is still to be sent."""
        self._request = None
        if self._call is not None:
            self._call.end()

    def _release(self) -> None:
        """The kernel has the answer, or nobody will."""
        call, self._call = self._call, None
        if call is not None:
            call.response_lease.release()

    def _uncount(self) -> None:
        if self._is_counted and self._call is None:
            self._is_counted = False
            self._broker.admission.connections.closed(self)

    def _refuse(self, error: MillraceError) -> None:
        """Say what is wrong, and end the connection."""
        _logger.info("the connection from %s is refused: %s", self._peer, error.message)
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
        """Since when nothing has been asked, in the loop's time; nothing while something is."""
        return self._since if self._state is _State.IDLE else None

    def check(self, now: float) -> None:
        """End the connection if it has been in its state for too long."""
        limit_s = self._listener.idle_s_max if self._state is _State.IDLE else _LIMITS_S.get(self._state)
        if limit_s is None or now - self._since < limit_s:
            return
        if self._state is _State.IDLE:
            self._say_goodbye()
            return
        if self._state is not _State.REFUSED:
            _logger.info("the connection from %s is closed: %s took too long", self._peer, self._state.name.lower())
        self._transport.abort()

    def make_room(self) -> None:
        """Close an idle connection, for another's sake."""
        self._say_goodbye()

    def stop(self) -> None:
        """Close it as soon as nothing is in progress."""
        self._is_stopping = True
        if self._state is _State.IDLE:
            self._say_goodbye()
        elif self._state in (_State.GREETING, _State.REFUSED):
            self._transport.abort()

    def abort(self) -> None:
        """Close it at once."""
        self._transport.abort()

    def cancel(self) -> None:
        """End what is in progress: it had its time."""
        if self._handling.is_waiting:
            self._handling.cancel()
        else:
            self._transport.abort()

    def _say_goodbye(self) -> None:
        """Close an idle connection, and let a client know whose request is on its way that it is not read."""
        self._uncount()
        text = b"the broker has closed an idle connection, or stops"
        self._transport.write(frames.response_head(len(text), 0, frames.Kind.GOODBYE) + text)
        self._transport.close()
