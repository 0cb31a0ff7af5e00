"""Client side of SASL over gRPC.

A client makes one exchange with a broker. Its calls to the broker then carry the session of the exchange.

Invariant: one thread at a time authenticates. Calls that begin meanwhile wait for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import grpc

from millrace.errors import SaslAuthenticationError
from millrace.protocol import grpc_sasl
from millrace.protocol.status import error_from_rpc
from millrace.security.sasl import LIFETIME_PART, CredentialsSource, exchange, refusal

_METHOD: Final = f"/{grpc_sasl.SERVICE}/{grpc_sasl.METHOD}"
Metadata = tuple[tuple[str, str], ...]


class GrpcSession:
    """Session of one client at one broker. Thread safe."""

    def __init__(self, credentials: CredentialsSource, host: str) -> None:
        self._host: Final = host
        self._credentials: Final = credentials
        self._lock: Final = threading.Lock()
        self._metadata: Metadata = ()
        self._expires = float("-inf")

    @property
    def is_open(self) -> bool:
        """True if the session is valid, so that a call needs no SASL exchange before it."""
        return time.monotonic() < self._expires

    def forget(self) -> None:
        """Authenticate again for the next call, because the broker does not know the session any more."""
        self._expires = float("-inf")

    def metadata(self, channel: grpc.Channel, timeout_s: float) -> Metadata:
        """Return the metadata of a call. It blocks if there is no session yet.

        Raises ``SaslAuthenticationError``, ``OSError`` if the provider of tokens does not answer, and
        ``grpc.RpcError``.
        """
        with self._lock:
            if not self.is_open:
                self._authenticate(channel, timeout_s)
            return self._metadata

    def _authenticate(self, channel: grpc.Channel, timeout_s: float) -> None:
        credentials = self._credentials()
        begun_s = time.monotonic()
        messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        steps = exchange(credentials, self._host)
        call: Any = channel.stream_stream(_METHOD, request_serializer=bytes, response_deserializer=bytes)(
            _until_none(messages), timeout=timeout_s, metadata=((grpc_sasl.MECHANISM_KEY, credentials.mechanism),)
        )
        try:
            messages.put(next(steps))
            for answer in call:
                try:
                    messages.put(steps.send(answer))
                except StopIteration:
                    break
            trailing = dict(call.trailing_metadata() or ())
        except grpc.RpcError as error:
            explained = error_from_rpc(error)
            if isinstance(explained, SaslAuthenticationError):
                raise refusal(credentials, explained.message) from None
            raise
        finally:
            messages.put(None)
            call.cancel()
        if grpc_sasl.SESSION_KEY not in trailing:
            raise SaslAuthenticationError("the broker gave no session: is this a listener for gRPC with SASL?")
        self._metadata = ((grpc_sasl.SESSION_KEY, str(trailing[grpc_sasl.SESSION_KEY])),)
        self._expires = begun_s + int(trailing[grpc_sasl.LIFETIME_KEY]) / 1000 * LIFETIME_PART


def _until_none(messages: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
    while (message := messages.get()) is not None:
        yield message
