"""SASL of a listener for gRPC.

One call authenticates the client, and a session identifies it in the calls that follow.

Invariants

- A session is signed with a key of this listener, which is new at each start. The broker stores no session.
- No body of a call is received before its session has been checked.
- An exchange ends within ``AUTHENTICATION_S``. Its memory is counted. Because the exchange waits for its client, it
  takes no place among the running calls.
- At most ``_READS_MAX`` messages are received at a time, because gRPC refuses only those above the limit of all calls,
  ``socket.request.max.bytes``. A message is in memory before its size is known here.
- Hosts that wait to send a message take turns. A client that sends none for ``_READ_S`` gives way to those that wait.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from millrace.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    RequestTimedOutError,
    SaslAuthenticationError,
)
from millrace.protocol import grpc_sasl
from millrace_broker.listeners.connection_states import AUTHENTICATION_S, SASL_BYTES_MAX
from millrace_broker.quotas import parked
from millrace_broker.security import KafkaPrincipal, SaslConversation

_LIFETIME_MS: Final = 3_600_000
"""Lifetime of a session at a listener without ``connections.max.reauth.ms``."""
_READS_MAX: Final = 8
"""Largest number of messages that are received at a time. The other clients wait."""
_READ_S: Final = 1.0
"""Time that a client may take for a message while others wait. It needs one round trip to the broker."""
_logger: Final = logging.getLogger(__name__)
_Context = Any  # grpc.aio.ServicerContext is generic in types that this module does not use


class ReadTurns:
    """Turns of clients to send a message. Each host has one of the next turns, however many calls it makes."""

    def __init__(self) -> None:
        self._reading = 0
        self._waiting: Final[dict[str, deque[asyncio.Future[None]]]] = {}
        """Calls by their hosts, in the order of the hosts' turns."""

    @property
    def are_wanted(self) -> bool:
        """True if a client waits for its turn."""
        return bool(self._waiting)

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Wait for a turn of a host."""
        if self._reading >= _READS_MAX:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(host, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                # A cancelled turn stays in its queue until ``_end`` skips it.
                if not turn.cancelled():
                    self._end()  # the turn was given at the moment of the cancellation
                raise
        else:
            self._reading += 1
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        """Give the turn to the next host. Its further calls wait behind those of the other hosts."""
        while self._waiting:
            host = next(iter(self._waiting))
            turns = self._waiting.pop(host)
            turn = turns.popleft()
            if turns:
                self._waiting[host] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._reading -= 1


class GrpcSessions:
    """Sessions of one listener."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._key: Final = secrets.token_bytes(32)
        self._wall_clock: Final = wall_clock
        self._reads: Final = ReadTurns()

    def issue(self, principal: KafkaPrincipal, lifetime_ms: int) -> str:
        """Return a session of a principal."""
        expires_ms = int(self._wall_clock() * 1000) + lifetime_ms
        content = json.dumps([principal.type, principal.name, expires_ms]).encode()
        return f"{_text(content)}.{_text(self._signature(content))}"

    def principal(self, context: _Context) -> KafkaPrincipal:
        """Return the principal of a call. Raises ``SaslAuthenticationError`` without a valid session."""
        session = dict(context.invocation_metadata() or ()).get(grpc_sasl.SESSION_KEY)
        if not isinstance(session, str):
            raise SaslAuthenticationError(
                "this listener wants SASL first: set security.protocol=SASL_SSL (or SASL_PLAINTEXT), and the user"
            )
        try:
            content, signature = (base64.urlsafe_b64decode(part) for part in session.split("."))
        except (ValueError, binascii.Error):
            raise SaslAuthenticationError("the session of the call is malformed") from None
        if not hmac.compare_digest(signature, self._signature(content)):
            raise SaslAuthenticationError("the session of the call is of another broker, or of before its restart")
        kind, name, expires_ms = json.loads(content)
        if self._wall_clock() * 1000 >= expires_ms:
            raise SaslAuthenticationError("the session of the call has expired: authenticate again")
        return KafkaPrincipal(kind, name)

    def _signature(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")

    async def exchange(self, conversation: SaslConversation, context: _Context, host: str) -> None:
        """Exchange the messages of a mechanism with a client of a host, and give it a session.

        Raises ``SaslAuthenticationError``, ``UnsupportedSaslMechanismError``, ``MessageTooLargeError``,
        ``InvalidRequestError`` and ``RequestTimedOutError``.
        """
        conversation.begin(str(dict(context.invocation_metadata() or ()).get(grpc_sasl.MECHANISM_KEY, "")))
        try:
            # The client decides how long the exchange waits. It must not keep a place from heartbeats meanwhile.
            async with asyncio.timeout(AUTHENTICATION_S):
                while conversation.principal is None:
                    message = await self._read(context, host)
                    with parked():
                        answer = await conversation.authenticate(message)
                    await context.write(answer.message)
        except TimeoutError:
            raise RequestTimedOutError(f"the client has not authenticated within {AUTHENTICATION_S:.0f} s") from None
        lifetime_ms = answer.lifetime_ms or _LIFETIME_MS
        context.set_trailing_metadata(
            (
                (grpc_sasl.SESSION_KEY, self.issue(conversation.principal, lifetime_ms)),
                (grpc_sasl.LIFETIME_KEY, str(lifetime_ms)),
            )
        )

    async def _read(self, context: _Context, host: str) -> bytes:
        """Receive a message.

        Raises ``MessageTooLargeError``, ``InvalidRequestError`` if there is none, and ``RequestTimedOutError`` if the
        client gives way.
        """
        with parked():
            async with self._reads.turn(host):
                message = await self._arrival(context, host)
                if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
                    raise InvalidRequestError("the client ended the exchange of SASL")
                if len(message) > SASL_BYTES_MAX:
                    del message  # which the error's traceback would keep longer than the turn
                    raise MessageTooLargeError(f"a message of SASL has more than {SASL_BYTES_MAX} bytes")
        return message

    async def _arrival(self, context: _Context, host: str) -> bytes:
        reading: asyncio.Future[bytes] = asyncio.ensure_future(context.read())
        try:
            while not (await asyncio.wait((reading,), timeout=_READ_S))[0]:
                if self._reads.are_wanted:
                    reason = f"it sent no message of SASL for {_READ_S:g} s, while other clients wait to authenticate"
                    _logger.warning("a client at %s gives way: %s", host, reason)
                    raise RequestTimedOutError(f"{reason}: try again")
            return reading.result()
        finally:
            reading.cancel()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii")
