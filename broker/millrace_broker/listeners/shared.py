"""What the listeners have in common: the same limits, whichever way a call comes."""

from __future__ import annotations

import socket
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from google.protobuf.message_factory import GetMessageClass

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import HANDLERS, UnaryHandler

RECEPTION_TIMEOUT_S: Final = 60.0
"""How long a request may take to come."""
FRAMING_BYTES: Final = 64 * 1024
"""Room in a message beside the records that ``socket.request.max.bytes`` is about."""
_ANY_PORT: Final = 9


class UnaryMethod(NamedTuple):
    """A call with one request and one response: its name, the class of its request, and what answers it."""

    name: str
    request: Any
    handler: UnaryHandler


UNARY_METHODS: Final[dict[bytes, UnaryMethod]] = {
    method.name.encode(): UnaryMethod(method.name, GetMessageClass(method.input_type), HANDLERS[method.name])
    for method in pb.DESCRIPTOR.services_by_name["Broker"].methods
    if method.name in HANDLERS
}
"""By their names on the wire."""


def peer_name(address: Any) -> str:
    """A socket's other end, as gRPC would spell it."""
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def is_local(peer: str) -> bool:
    """Whether a peer's name, as gRPC spells it, is on this host: by whichever of the host's addresses it came.

    ``ipv4:127.0.0.1:5000``, ``ipv6:%5B::1%5D:5000``, ``unix:``.
    """
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind == "unix"
    host = unquote(rest).rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "::1" or host.startswith("127."):
        return True
    # To an address of its own, and to no other, the host talks from that very address. Nothing is sent for this.
    try:
        with socket.socket(socket.AF_INET6 if kind == "ipv6" else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _ANY_PORT))
            return str(probe.getsockname()[0]) == host
    except OSError:
        return False


def binding_problem(address: str, option: str) -> str:
    """What is wrong when an address cannot be listened at; ``option`` sets it."""
    return (
        f"cannot listen at {address}: the port is in use, or the address is not this host's. "
        f"Stop what listens there, or set another one with {option}"
    )
