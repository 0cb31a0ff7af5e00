"""Server side of a connection in Kafka's framing.

A connection handles one request at a time. Kafka's classes are ``SocketServer.Processor`` and ``KafkaChannel``. Calls
of Kafka and of millrace use the same connections (``wire_calls``). A client of millrace begins with ``HELLO``.

Invariants

- Memory for a message is taken from the budget before the message is received, in steps if memory is short. Bytes that
  arrive with its head are excepted, at most the listener's buffer. While the connection waits for memory, it reads
  nothing. A message that stops in the middle gives way to calls that wait.
- Before and during authentication, a request takes a place and memory only when it is complete. The connection is
  counted with its first call after that.
- A request is answered exactly once, unless the connection is lost, which cancels the handler. Both leases and the
  place among the requests in progress are given back either way. The response's lease ends once the kernel has it.
- A handler runs at once in the event loop up to its first wait. Only a handler that waits gets a task (``small_work``).
- A muted connection serves and parses nothing until its client's quotas allow it, whatever connection used them up.
- While a request is in progress, later requests are not parsed, and not received beyond one buffer. Responses
  therefore have the order of their requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from millrace.errors import InvalidRequestError, MillraceError, SaslAuthenticationError, ThrottledError
from millrace.kafka_protocol.calls.table import ApiKey
from millrace.protocol import frames
from millrace_broker.api import ClientAddress
from millrace_broker.listeners.admission_wait import AdmissionWait
from millrace_broker.listeners.connection_states import (
    AUTHENTICATION_S,
    LIMITS_S,
    READY,
    SASL_KEYS,
    Request,
    State,
    check_size,
)
from millrace_broker.listeners.handling import Ended, Handling
from millrace_broker.listeners.owner import ConnectionOwner
from millrace_broker.listeners.quota_wait import QuotaWait
from millrace_broker.listeners.reception import ContentReception, DiscardedContent
from millrace_broker.listeners.response_writer import ResponseWriter
from millrace_broker.listeners.wire_calls import Buffer, Response, check_first_bytes, error_response, read_hello
from millrace_broker.network.sockets import keep_alive
from millrace_broker.quotas import AdmittedCall, CallClass, class_of
from millrace_broker.security import KafkaPrincipal

_logger = logging.getLogger(__name__)


class Connection(asyncio.BufferedProtocol):
    """Broker's end of one connection, in the event loop. ``_is_own`` means that the client is one of millrace."""

    def __init__(self, listener: ConnectionOwner[Connection], principal: KafkaPrincipal) -> None:
        """``principal`` is the client's, as far as the listener knows it before the first request."""
        self._listener, self._principal = listener, principal
        self._sasl = listener.conversation()
        self._broker, self._loop = listener.broker, listener.loop
        self._state = State.GREETING
        self._since = self._loop.time()
        self._rest = b""  # received but not parsed: a part of a head, or the next request
        self._request: Request | None = None
        self._reception: ContentReception | DiscardedContent | None = None
        self._refusal_id = 0  # correlation id of an error that ends the connection: of HELLO, or of all other calls
        self._call: AdmittedCall | None = None  # the call in progress, until its answer was sent
        self._is_own = self._is_counted = self._is_stopping = self._is_lost = self._has_stopped_reading = False
        self._admission_wait = AdmissionWait(listener.loop, self._drop)
        self._quota_wait = QuotaWait(listener.loop)

    # --- the transport's calls --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the new connection. The client is still unknown."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._writer = transport, ResponseWriter(transport)
        self.client_address = self._client = ClientAddress(*transport.get_extra_info("peername")[:2])
        self._handling = Handling(self._broker, self._listener.name, self._client, self._answer)
        self._handling.sasl = self._sasl
        self._handling.authenticated(self._principal, self._listener.access)
        keep_alive(transport.get_extra_info("socket"))
        self._listener.opened(self, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to receive into: the current message's, or the shared one."""
        return self._listener.buffer if self._reception is None else self._reception.left

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes received into the buffer."""
        reception = self._reception
        if reception is not None:
            has_room = reception.add(nbytes)
            if reception.is_complete:
                self._reception = None
                if isinstance(reception, ContentReception):
                    self._serve(reception.end())
                else:
                    self._finish((), reception.failure)
                self._go_on()
            elif isinstance(reception, ContentReception) and not has_room:
                self._wait(reception.grow(), self._grown)
            return
        if self._state is State.REFUSED:
            return
        data = self._listener.buffer[:nbytes]
        if self._rest:
            data, self._rest = memoryview(self._rest + data), b""
        self._consume(data)

    def pause_writing(self) -> None:
        """Pause the writer, because the kernel takes no more bytes."""
        self._writer.pause()

    def resume_writing(self) -> None:
        """Resume the writer, because the kernel has all bytes of the transport."""
        self._writer.resume()
        if self._state is State.SENDING:
            self._since = self._loop.time()
            self._sent()
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the call in progress and release all resources."""
        self._is_lost = True
        if self._reception is not None or (self._rest and self._state in READY):
            _logger.info("the connection from %s has ended within a request", self._client)
        self._end_reception()
        is_handled = self._handling.cancel()
        if self._admission_wait.is_active:
            self._admission_wait.cancel()  # ``_drop`` releases them
        elif not is_handled:  # else ``_answer`` releases them
            self._quota_wait.cancel()
            self._drop()
        self._uncount()
        self._writer.drop()
        self._listener.closed(self)

    # --- receiving ------------------------------------------------------------------------------------------------

    def _consume(self, data: memoryview) -> None:
        """Parse requests from the received bytes, as many as can be answered at once. Keep the rest."""
        position = 0
        while position < len(data) and self._state in READY:
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
        if self._state not in READY:
            self._stop_reading()
        elif self._state is State.IDLE:
            self._enter(State.HEAD)

    def _go_on(self) -> None:
        """Parse the bytes received during the last request."""
        if self._state in READY and not self._is_over:
            if self._rest:
                data, self._rest = memoryview(self._rest), b""
                self._consume(data)
            if self._state in READY or self._reception is not None:
                self._read_on()

    @property
    def _is_over(self) -> bool:
        return self._is_lost or self._transport.is_closing()

    def _take(self, data: memoryview) -> int:
        """Process the first element of ``data``. Return its size, or 0 if ``data`` is too short.

        Raises the error that ends the connection.
        """
        if len(data) < frames.HEAD_BYTES:
            return 0
        if self._state is State.GREETING:
            check_first_bytes(data)
        head = frames.read_head(data)
        is_authenticating = self._sasl is not None and head.api_key in SASL_KEYS
        is_early = is_authenticating or (self._sasl is not None and self._sasl.principal is None)
        check_size(head, self._listener.size_max(head.api_key), is_early=is_early)
        start, end = frames.HEAD_BYTES, frames.HEAD_BYTES + head.rest_bytes
        if head.api_key == frames.HELLO:
            return self._hello(head, data[start:end]) if len(data) >= end else 0
        if self._sasl is not None and not is_authenticating and head.api_key != ApiKey.API_VERSIONS:
            self._sasl.check()
        wants_client_id = self._broker.client_quotas.is_active and not frames.has_client_id(data[start:])
        # A client without a password must not keep a place. The client id decides which quotas a call waits for.
        if (is_early or wants_client_id) and len(data) < end:
            return 0
        if not (self._is_counted or is_early):  # a Kafka client, which has no greeting
            if head.api_key >= frames.OWN_KEYS_MIN:
                raise InvalidRequestError("the first call of a client of millrace is HELLO")
            self._listener.wire_call(head.api_key)  # a client of another protocol is not counted
            self._count()
        self._begin(Request(self._listener.wire_call(head.api_key), head), data[start:end])
        return min(len(data), end)

    def _hello(self, head: frames.Head, content: memoryview) -> int:
        """Answer the first call of a client of millrace. Return the size of the request."""
        self._is_own = True
        self._refusal_id = head.correlation_id
        if self._sasl is not None:
            self._sasl.check()
        if self._is_counted:
            raise InvalidRequestError("HELLO is the first call of a connection, and no later one")
        hello = read_hello(head, content)
        self._handling.greeted(hello, self._listener.access)
        self._count()
        self._refusal_id = 0
        answer = self._listener.hello().SerializeToString()
        self._transport.write(frames.response_head(len(answer), correlation_id=head.correlation_id) + answer)
        self._enter(State.IDLE)
        return frames.HEAD_BYTES + head.rest_bytes

    def _count(self) -> None:
        """Count the connection. Raises ``ThrottledError``."""
        self._listener.count(self, is_broker=self._handling.is_exempt)
        self._is_counted = True

    def _begin(self, request: Request, part: memoryview, *, has_waited: bool = False) -> None:
        """Admit a request. Serve it if ``part`` is its whole content, else receive the rest."""
        self._request = request
        is_limited = self._broker.client_quotas.is_active and not has_waited
        if is_limited and self._handling.must_wait(request.call.name, request.head, part, is_own=self._is_own):
            self._mute(self._handling.wait_s, partial(self._begin_later, request, bytes(part)))
            return
        call_class = class_of(request.call.name, is_broker=self._handling.is_exempt)
        admission = self._broker.admission
        if not (request.call.waits_for_place and admission.rooms[call_class].is_full):
            try:
                self._call = admission.begin(self if self._is_counted else None, call_class)
            except MillraceError as error:
                self._turn_away(call_class, part, error)
                return
        if self._call is not None and self._call.request_lease.grow_now(request.head.rest_bytes, len(part)):
            self._receive(part)
        else:
            work = self._admission(call_class, request.head.rest_bytes, len(part))
            self._wait(work, partial(self._admitted, call_class, memoryview(bytes(part))))

    def _turn_away(self, call_class: CallClass, part: memoryview, error: MillraceError) -> None:
        """Answer a request that is not admitted, after the rest of it is discarded."""
        assert self._request is not None
        # The reserve has no place for a connection that makes client calls.
        room = self._broker.admission.connections.room_of(self)
        self._is_stopping |= call_class is CallClass.CLIENT and room is CallClass.CONTROL
        self._enter(State.RECEIVING)
        if left_bytes := self._request.head.rest_bytes - len(part):
            self._reception = DiscardedContent(self._listener.buffer, left_bytes, error)
        else:
            self._finish((), error)

    async def _admission(self, call_class: CallClass, size_bytes: int, arrived_bytes: int) -> None:
        if self._call is None:
            peer = self if self._is_counted else None
            self._call = await self._broker.admission.begin_in_turn(peer, call_class)
        await self._call.take_request_memory(self._call.request_step(size_bytes, arrived_bytes))

    def _admitted(self, call_class: CallClass, held: memoryview, failure: MillraceError | None) -> None:
        if self._is_over:
            self._drop()
            return
        if failure is not None:
            self._turn_away(call_class, held, failure)
        else:
            self._receive(held)
        self._proceed()

    def _proceed(self) -> None:
        """Receive the rest of a request that had to wait, or the next one."""
        if self._reception is not None:
            self._read_on()
        self._go_on()

    def _receive(self, part: memoryview) -> None:
        assert self._request is not None
        size_bytes = self._request.head.rest_bytes
        if len(part) == size_bytes:
            self._serve(part)
            return
        assert self._call is not None
        self._enter(State.RECEIVING)
        self._reception = ContentReception(self._call, size_bytes, part, self._give_way)

    def _wait(self, work: Coroutine[Any, Any, None], go_on: Callable[[MillraceError | None], None]) -> None:
        """Read nothing until the request has a place, and memory for its next bytes."""
        self._enter(State.SERVING)
        self._stop_reading()
        self._admission_wait.start(work, go_on)

    def _grown(self, failure: MillraceError | None) -> None:
        assert failure is None, failure  # no call refuses the next step of a request
        self._enter(State.RECEIVING)
        self._read_on()

    def _end_reception(self) -> None:
        reception, self._reception = self._reception, None
        if reception is not None:
            reception.end()

    def _give_way(self, reason: str, received: memoryview) -> None:
        """End a request that stopped in the middle."""
        assert self._request is not None
        _logger.warning("%s of %s gives way: %s", self._request.call.name, self._handling.caller(received), reason)
        self._end_reception()
        self._end_call()
        if self._is_own:
            self._refuse(ThrottledError(reason))
        else:
            self._transport.abort()

    def _stop_reading(self) -> None:
        if not self._has_stopped_reading and not self._is_over:
            self._has_stopped_reading = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._has_stopped_reading and not self._is_over:
            self._has_stopped_reading = False
            self._transport.resume_reading()

    # --- serving and answering --------------------------------------------------------------------------------------

    def _serve(self, content: Buffer) -> None:
        assert self._request is not None
        assert self._call is not None
        self._enter(State.SERVING)
        call, head = self._request
        ended = self._handling.variables.run(self._handling.start, call, head, content, self._call)
        if ended is not None:  # the caller goes on, because ``variables`` cannot be entered twice
            self._finish(*ended)

    def _answer(self, ended: Ended) -> None:
        """Answer when a handler that has waited has ended."""
        self._finish(*ended)
        self._go_on()

    def _finish(self, response: Response, failure: MillraceError | None) -> None:
        """Send the answer. The connection is ready for the next request after that."""
        request = self._request
        assert request is not None
        self._end_call()
        if self._is_over:
            self._drop()
            return
        if self._sasl is not None and request.head.api_key in SASL_KEYS:
            self._is_stopping |= self._sasl.has_failed
            if self._sasl.principal is not None:
                self._handling.authenticated(self._sasl.principal, self._listener.access)
        if failure is not None:
            refusal = request.call.refusal(request.head, failure)
            if refusal is None:
                self._release()
                self._close(failure)
                return
            response = refusal
        if response:
            self._writer.write(response)
        if not self._writer.is_idle:
            self._enter(State.SENDING)
        self._sent()

    def _sent(self) -> None:
        """Become ready for the next request, if the kernel has the whole response."""
        if not self._writer.is_idle or self._is_over:
            return
        self._release()
        usage = self._handling.usage
        if usage is not None and usage.throttle_s > 0 and not (self._is_own or self._is_stopping):
            self._handling.usage = None
            self._mute(usage.left_s, self._unmute)
            return
        self._enter(State.IDLE)
        if self._is_stopping:
            self.say_goodbye()

    def _mute(self, left_s: Callable[[], float], go_on: Callable[[], None]) -> None:
        """Read nothing while the client's quotas want it to wait (KIP-219)."""
        self._enter(State.MUTED)
        self._stop_reading()
        # A client with acks=0 waits for no answer: its requests, held or unread, are served after it has hung up.
        is_watched = self._request is not None and self._request.call.name != "Produce"
        self._quota_wait.start(left_s, go_on, self._transport if is_watched else None)

    def _unmute(self) -> None:
        self._enter(State.IDLE)
        self._go_on()

    def _begin_later(self, request: Request, held: bytes) -> None:
        self._begin(request, memoryview(held), has_waited=not self._is_own)
        self._proceed()

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

    def _drop(self) -> None:
        """Release all resources of the request of a lost connection."""
        self._end_call()
        self._release()
        self._uncount()

    def _uncount(self) -> None:
        if self._is_counted and self._call is None:
            self._is_counted = False
            self._broker.admission.connections.closed(self)

    def _refuse(self, error: MillraceError) -> None:
        """End the connection after an error in its bytes. A client of millrace is told the error."""
        if not self._is_own:
            self._close(error)
            return
        _logger.info("the connection from %s is refused: %s", self._client, error.message)
        self._writer.write(error_response(self._refusal_id, error))
        if self._transport.can_write_eof() and not self._is_over:
            self._transport.write_eof()
        self._rest = b""
        self._enter(State.REFUSED)
        self._read_on()

    def _close(self, error: MillraceError) -> None:
        """Close the connection of a client that cannot be answered."""
        _logger.warning("the connection from %s is closed: %s", self._client, error.message)
        self._uncount()
        self._rest = b""
        self._transport.close()

    # --- life -----------------------------------------------------------------------------------------------------

    def _enter(self, state: State) -> None:
        self._state = state
        self._since = self._loop.time()

    @property
    def idle_since(self) -> float | None:
        """Loop time since when the connection is idle; None during a request."""
        return self._since if self._state is State.IDLE else None

    def check(self, now: float) -> None:
        """Close the connection if it has been in its state for too long."""
        if self._sasl is not None and self._sasl.is_too_slow(AUTHENTICATION_S):
            self._close(SaslAuthenticationError(f"it has not authenticated within {AUTHENTICATION_S:.0f} s"))
            self._transport.abort()
            return
        if self._reception is not None and self._reception.has_progressed():
            self._since = now
        limit_s = self._listener.idle_s_max if self._state is State.IDLE else LIMITS_S.get(self._state)
        if limit_s is None or now - self._since < limit_s:
            return
        if self._state is State.IDLE:
            self.say_goodbye()
            return
        if self._state is not State.REFUSED:
            _logger.info("the connection from %s is closed: %s took too long", self._client, self._state.name.lower())
        self.abort()

    def stop(self) -> None:
        """Close the connection as soon as no request is in progress."""
        self._is_stopping = True
        if self._state in (State.IDLE, State.MUTED):
            self.say_goodbye()
        elif self._state in (State.GREETING, State.REFUSED):
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
        if self._is_own:
            self._transport.write(frames.goodbye("the broker has closed an idle connection, or stops"))
        self._transport.close()
