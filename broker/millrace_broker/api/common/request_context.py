"""Context of a request: the call's name, the listener, and the client."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, NamedTuple

from millrace_broker.quotas import Lease, Usage
from millrace_broker.security import KafkaPrincipal, SaslConversation

_NO_RECORDS: Final[Mapping[tuple[str, int], memoryview]] = MappingProxyType({})


class ClientAddress(NamedTuple):
    """IP address and port of a connection's client end."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return ``127.0.0.1:5000`` or ``[::1]:5000``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RequestContext(NamedTuple):
    """The client and the listener of one request, Kafka's ``RequestContext``.

    The listener makes a context for each request, and passes it to the handler. ``client_id`` is the name that the
    client claims, empty if it has none. ``response_lease`` accounts for the bytes of the response. A named tuple is
    made in half the time of a frozen dataclass.
    """

    api_name: str
    listener_name: str
    principal: KafkaPrincipal
    client_id: str
    client_address: ClientAddress
    response_lease: Lease
    is_broker: bool = False
    """True if the principal is authenticated as one of the cluster's brokers, on the listener between them."""
    sasl: SaslConversation | None = None
    """SASL of the connection; None at a listener without SASL, and for gRPC."""
    usage: Usage | None = None
    """The call's use of its client's quotas; None if no quota applies."""
    records: Mapping[tuple[str, int], memoryview] = _NO_RECORDS
    """Records of a Produce request by topic and partition, if its message has none: they are parts of the request."""

    @property
    def client_host(self) -> str:
        """The client's host in the form of Kafka's group descriptions: ``/127.0.0.1``."""
        return f"/{self.client_address.host}"

    def __str__(self) -> str:
        """Describe the request for the log."""
        return (
            f"{self.api_name} from {self.client_address} "
            f"(client id {self.client_id!r}, {self.principal}, listener {self.listener_name})"
        )


in_progress: ContextVar[RequestContext | None] = ContextVar("in_progress", default=None)
"""Request that a task works for, used in the log; None for the broker's own work.

The listener sets it; tasks started by a handler inherit it.
"""
