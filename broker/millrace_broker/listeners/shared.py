"""Limits and names that both listeners share."""

from __future__ import annotations

import socket
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from google.protobuf.message_factory import GetMessageClass

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import HANDLERS, UnaryHandler

RECEPTION_TIMEOUT_S: Final = 60.0
"""How long the reception of a request may take."""
FRAMING_BYTES: Final = 64 * 1024
"""Room in a message beside the records that ``socket.request.max.bytes`` limits."""
_ANY_PORT: Final = 9


class UnaryMethod(NamedTuple):
    """Call with one request and one response: its name, its request class, and its handler."""

    name: str
    request: Any
    handler: UnaryHandler


UNARY_METHODS: Final[dict[bytes, UnaryMethod]] = {
    method.name.encode(): UnaryMethod(method.name, GetMessageClass(method.input_type), HANDLERS[method.name])
    for method in pb.DESCRIPTOR.services_by_name["Broker"].methods
    if method.name in HANDLERS
}
"""Unary methods by their names on the wire."""


def peer_name(address: Any) -> str:
    """Return a socket's peer in the format of gRPC."""
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def is_local(peer: str) -> bool:
    """Return whether a peer, in the format of gRPC, is on this host. Any address of the host counts.

    Examples of peers: ``ipv4:127.0.0.1:5000``, ``ipv6:%5B::1%5D:5000``, ``unix:``.
    """
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind == "unix"
    host = unquote(rest).rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "::1" or host.startswith("127."):
        return True
    # For a destination among its own addresses, and only then, the host uses that address as source. Nothing is sent.
    try:
        with socket.socket(socket.AF_INET6 if kind == "ipv6" else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _ANY_PORT))
            return str(probe.getsockname()[0]) == host
    except OSError:
        return False


def binding_problem(address: str, option: str) -> str:
    """Explain why an address cannot be bound. ``option`` sets the address."""
    return (
        f"cannot listen at {address}: the port is in use, or the address is not this host's. "
        f"Stop the process that listens there, or set another address with {option}"
    )
