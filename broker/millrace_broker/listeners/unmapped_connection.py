"""Connection of a client whose certificate no rule of ``ssl.principal.mapping.rules`` matches.

A client of millrace gets the reason as the answer to its first call, so that it fails at once. Kafka's protocol has no
such answer, so that the connection of any other client is closed.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import SslAuthenticationError
from millrace.protocol import frames
from millrace_broker.listeners.connection import Connection
from millrace_broker.listeners.owner import ConnectionOwner
from millrace_broker.security import ANONYMOUS


class UnmappedConnection(Connection):
    """Connection that answers its first call with an error, and no other."""

    def __init__(self, listener: ConnectionOwner[Connection], error: SslAuthenticationError) -> None:
        super().__init__(listener, ANONYMOUS)
        self._error: Final = error

    def _take(self, data: memoryview) -> int:
        """Raise the error that ends the connection, as soon as the client's protocol is known."""
        if len(data) < frames.HEAD_BYTES:
            return 0
        head = frames.read_head(data)
        if head.api_key == frames.HELLO:
            self._is_own, self._refusal_id = True, head.correlation_id
        raise self._error
