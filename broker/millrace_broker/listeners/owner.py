"""Interface of a listener for its connections."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.broker import Broker
from millrace_broker.listeners.wire_calls import WireCall
from millrace_broker.security import ListenerAccess, SaslConversation

C = TypeVar("C", contravariant=True)


class ConnectionOwner(Protocol[C]):
    """Listener that owns a connection."""

    @property
    def name(self) -> str:
        """Name of the listener."""
        ...

    @property
    def access(self) -> ListenerAccess:
        """The listener's security."""
        ...

    def conversation(self) -> SaslConversation | None:
        """Return the SASL of a new connection; None at a listener without SASL."""
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

    def wire_call(self, api_key: int) -> WireCall:
        """Return the call of an API key. Raises ``UnsupportedVersionError`` if the broker has none."""
        ...

    def size_max(self, api_key: int) -> int:
        """Return the size in bytes of the largest request of a call."""
        ...

    @property
    def idle_s_max(self) -> float:
        """Seconds that a connection may be idle."""
        ...

    def hello(self) -> pb.HelloResponse:
        """Return the first message for a client."""
        ...

    def opened(self, connection: C, transport: asyncio.Transport) -> None:
        """Register a connection, which may have to wait before anything is read from it."""
        ...

    def closed(self, connection: C) -> None:
        """Remove a closed connection."""
        ...

    def count(self, connection: C, *, is_broker: bool) -> None:
        """Count a connection. Raises ``ThrottledError``."""
        ...
