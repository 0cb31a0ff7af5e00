"""Execution of handlers in the event loop and in tasks.

A handler runs at once in the event loop up to its first wait. A task continues a handler that waits.

Invariant: Each ``start`` ends exactly once, also when the handler is cancelled or its deadline passes. If the handler
never waits, ``start`` returns the end. Otherwise ``on_end`` gets it later, and never before ``start`` has returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from millrace.errors import InvalidRequestError, MillraceError, RequestTimedOutError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.frames import Head, read_client_id
from millrace_broker.api import ClientAddress, RequestContext, in_progress, known_error
from millrace_broker.broker import Broker
from millrace_broker.listeners.wire_calls import Buffer, Response, WireCall
from millrace_broker.quotas import BROKER_SOFTWARE_NAME, AdmittedCall, Usage, current_call
from millrace_broker.runtime.small_work import StandIn, first_step, rest
from millrace_broker.security import ANONYMOUS, KafkaPrincipal, ListenerAccess, SaslConversation

_NEVER: Final = float("inf")

_logger = logging.getLogger(__name__)


def _timed_out() -> RequestTimedOutError:
    return RequestTimedOutError("the call ended without an answer: its deadline passed, or the broker stops")


class Ended(NamedTuple):
    """Response of a request, or its error."""

    response: Response
    failure: MillraceError | None


class Handling:
    """Handlers of one connection's calls.

    One handler runs at a time, in the event loop.
    """

    def __init__(
        self,
        broker: Broker,
        listener_name: str,
        client_address: ClientAddress,
        on_end: Callable[[Ended], None],
    ) -> None:
        """Prepare the calls of a connection. ``on_end`` gets the end of a handler that has waited."""
        self._broker: Final = broker
        self._listener_name: Final = listener_name
        self._client_address: Final = client_address
        self._on_end: Final = on_end
        self.client_id = ""
        """Name that the client claimed in its greeting, for calls that have none themselves."""
        self.principal = ANONYMOUS
        """Principal of the connection."""
        self.is_broker = False
        """True if the principal is one of the cluster's brokers."""
        self.is_exempt = False
        """True if the peer is a broker, to which no quota applies."""
        self.wait_s: Callable[[], float] = float
        """Seconds until the client's quotas allow its next call; 0 until ``must_wait``."""
        self.usage: Usage | None = None
        """The last call's use of its client's quotas."""
        self.sasl: SaslConversation | None = None
        """SASL of the connection."""
        self.variables: Final = contextvars.copy_context()
        """Context variables of all calls, which run one after the other. Handlers' tasks copy them."""
        self._waiting: StandIn | None = None
        self._task: asyncio.Task[None] | None = None
        self._deadline_s = 0.0
        """Time of the event loop at which the waiting handler is cancelled."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer of the deadline. It stays set when a call ends, because most calls end long before their deadline."""

    @property
    def is_waiting(self) -> bool:
        """True if a handler waits."""
        return self._waiting is not None

    def caller(self, content: Buffer) -> str:
        """Return the name of a request's client, for messages. ``content`` is as much of the request as has arrived."""
        client_id = self.client_id
        with contextlib.suppress(InvalidRequestError):
            client_id = read_client_id(content)[0] or client_id
        return f"{self.principal} (client id {client_id!r}) at {self._client_address}"

    def authenticated(self, principal: KafkaPrincipal, access: ListenerAccess) -> None:
        """Make the following calls those of a principal."""
        self.principal = principal
        self.is_broker = access.is_broker(principal)

    def greeted(self, hello: pb.HelloRequest, access: ListenerAccess) -> None:
        """Take the client id of a greeting, and whether the peer is a broker."""
        self.client_id = hello.client_id
        _logger.debug("%s has client id %r, runs %s", self._client_address, hello.client_id, hello.client_software_name)
        claims = hello.client_software_name == BROKER_SOFTWARE_NAME
        self.is_exempt = claims and access.believes_broker(self.principal)

    def must_wait(self, call: str, head: Head, part: Buffer, *, is_own: bool) -> bool:
        """Return whether the next call has to wait for its client's quotas, for ``wait_s``.

        ``part`` begins with the client id. A call of millrace waits until the client has no debt. A call of Kafka waits
        for the debt at its arrival, so that clients that share a quota take turns.
        """
        if self.is_exempt or (self.sasl is not None and self.sasl.principal is None):
            return False
        client_id = None
        with contextlib.suppress(InvalidRequestError):  # the handler reports it
            client_id, _ = read_client_id(part)
        user, client_id = self.principal.name, self.client_id if client_id is None else client_id
        usage = self._broker.client_quotas.usage(user, client_id, head.rest_bytes)
        if usage is None:
            return False
        usage.hold(call)
        self.wait_s = partial(usage.wait_s, call) if is_own else usage.left_s
        return self.wait_s() > 0

    def start(self, wire_call: WireCall, head: Head, content: Buffer, admitted: AdmittedCall) -> Ended | None:
        """Handle a request, in ``variables``. Return its end; None if the handler waits.

        Cancel a handler that still waits after its deadline.
        """
        self.usage = None
        try:
            client_id, position = read_client_id(content)
            if client_id is None:
                client_id = self.client_id
            quotas = self._broker.client_quotas
            if quotas.is_active and not self.is_exempt:
                self.usage = quotas.usage(self.principal.name, client_id, head.rest_bytes)
            context = RequestContext(
                api_name=wire_call.name,
                listener_name=self._listener_name,
                principal=self.principal,
                client_id=client_id,
                client_address=self._client_address,
                response_lease=admitted.response_lease,
                is_broker=self.is_broker,
                sasl=self.sasl,
                usage=self.usage,
            )
            in_progress.set(context)
            current_call.set(admitted)
            work, deadline_ms = wire_call.begin(self._broker, head, content, position, context)
            if self.usage is not None:
                work = self.usage.measured(work)
            waiting = self._waiting = first_step(work)
        except StopIteration as done:
            return Ended(done.value, None)
        except Exception as error:  # noqa: BLE001 - every error ends the call with its number
            return Ended((), known_error(error))
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._go_on(waiting))
        self._deadline_s = loop.time() + deadline_ms / 1000 if deadline_ms else _NEVER
        if deadline_ms and (self._timer is None or self._timer.when() > self._deadline_s):
            self._set_timer()
        return None

    def _set_timer(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_at(self._deadline_s, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiting is None or self._deadline_s == _NEVER:
            return
        if asyncio.get_running_loop().time() >= self._deadline_s:
            self._waiting.cancel()
        else:
            self._set_timer()

    async def _go_on(self, waiting: StandIn) -> None:
        """Continue a handler after its first wait, and answer in the loop iteration in which it ends."""
        response: Response = ()
        failure: MillraceError | None = None
        try:
            response = await rest(waiting)
        except asyncio.CancelledError:
            failure = _timed_out()
        except Exception as error:  # noqa: BLE001 - every error ends the call with its number
            failure = known_error(error)
        try:
            self._end(response, failure)
        finally:
            del failure  # its traceback has this frame, and would keep the files in other frames open

    def _end(self, response: Response, failure: MillraceError | None) -> None:
        self._waiting = self._task = None
        self._on_end(Ended(response, failure))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cancel(self) -> bool:
        """Cancel a waiting handler, and stop the timer. Return whether a handler waits."""
        self._stop_timer()
        return self._waiting is not None and self._waiting.cancel()
