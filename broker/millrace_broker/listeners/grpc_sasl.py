"""SASL of a listener for gRPC: a call that authenticates, and sessions for the calls that follow.

Invariants

- A session is signed with a key of this listener, which is new at each start. The broker stores no session.
- No body of a call is received before its session has been checked.
- An exchange ends within ``AUTHENTICATION_S``. It is a call that waits for its client: its memory is counted, and it
  takes no place among the running calls.
- At most ``_READS_MAX`` messages are received at a time, because gRPC refuses only those above the limit of all calls,
  ``socket.request.max.bytes``. A message is in memory before its size is known here.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import secrets
import time
from collections.abc import Callable
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
"""Largest number of messages that are received at a time. Clients of the others wait in their order."""
_Context = Any  # grpc.aio.ServicerContext is generic in types that this module does not use


class GrpcSessions:
    """Sessions of one listener."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._key: Final = secrets.token_bytes(32)
        self._wall_clock: Final = wall_clock
        self._reads: Final = asyncio.Semaphore(_READS_MAX)

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

    async def exchange(self, conversation: SaslConversation, context: _Context) -> None:
        """Exchange the messages of a mechanism with a client, and give it a session.

        Raises ``SaslAuthenticationError``, ``UnsupportedSaslMechanismError``, ``MessageTooLargeError``,
        ``InvalidRequestError`` and ``RequestTimedOutError``.
        """
        conversation.begin(str(dict(context.invocation_metadata() or ()).get(grpc_sasl.MECHANISM_KEY, "")))
        try:
            # The client decides how long the exchange waits. It must not keep a place from heartbeats meanwhile.
            async with asyncio.timeout(AUTHENTICATION_S):
                while conversation.principal is None:
                    message = await self._read(context)
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

    async def _read(self, context: _Context) -> bytes:
        """Receive a message. Raises ``MessageTooLargeError``, and ``InvalidRequestError`` if there is none."""
        with parked():
            async with self._reads:
                message: bytes = await context.read()
                if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
                    raise InvalidRequestError("the client ended the exchange of SASL")
                if len(message) > SASL_BYTES_MAX:
                    del message  # which the error's traceback would keep longer than the turn
                    raise MessageTooLargeError(f"a message of SASL has more than {SASL_BYTES_MAX} bytes")
        return message


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii")
