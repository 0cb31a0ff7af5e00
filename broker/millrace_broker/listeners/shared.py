"""Limits and names that both kinds of listener share."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from google.protobuf.message_factory import GetMessageClass

from millrace.config.listeners import Listener
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import HANDLERS, UnaryHandler

RECEPTION_TIMEOUT_S: Final = 60.0
"""Time that the reception of a request may take."""
FRAMING_BYTES: Final = 64 * 1024
"""Room in a message beside the records that ``socket.request.max.bytes`` limits."""


class UnaryMethod(NamedTuple):
    """Call with one request and one response."""

    name: str
    request: Any
    handler: UnaryHandler


UNARY_METHODS: Final[dict[bytes, UnaryMethod]] = {
    method.name.encode(): UnaryMethod(method.name, GetMessageClass(method.input_type), HANDLERS[method.name])
    for method in pb.DESCRIPTOR.services_by_name["Broker"].methods
    if method.name in HANDLERS
}
"""Unary methods by their names on the wire."""


def binding_problem(name: str, address: Listener) -> str:
    """Explain why a listener's address cannot be bound."""
    return (
        f"cannot listen at {name}://{address}: the port is in use, or the address is not this host's. "
        "Stop the process that listens there, or set another address with listeners (--listen HOST:PORT)"
    )
