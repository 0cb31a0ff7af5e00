"""Listeners of a broker, in Kafka's syntax: ``NAME://host:port,NAME://host:port``.

Kafka's classes are ``EndPoint`` and ``ListenerName``; the rules are those of ``KafkaConfig`` (KIP-103). Beside its
security protocol, a listener has the protocol of its calls: Kafka's framing, or gRPC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import Final, NamedTuple

from millrace.config.security_options import SecurityProtocol

_LISTENER: Final = re.compile(r"([A-Za-z0-9._-]+)://(?:\[([0-9A-Fa-f:.%]*)\]|([^\[\]:/\s]*)):(\d{1,5})")
_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]*)\]|([^\[\]:/\s]*)):(\d{1,5})")
_PORT_MAX: Final = 65535
_ALL_INTERFACES: Final = "0.0.0.0"

KAFKA_LISTENER: Final = "PLAINTEXT"
"""Name of the default listener for Kafka's framing."""
GRPC_LISTENER: Final = "GRPC"
"""Name of the default listener for gRPC."""


class ListenerProtocol(StrEnum):
    """Protocol of the calls at a listener."""

    KAFKA = "kafka"
    GRPC = "grpc"


class Listener(NamedTuple):
    """Address of a listener. Port 0 takes a free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Listener:
        """Parse ``host:port`` or ``[v6 address]:port``. Raises ``ValueError``."""
        found = _ADDRESS.fullmatch(text.strip())
        if found is None or int(found[3]) > _PORT_MAX:
            raise ValueError(f"{text!r} is not an address: expected host:port")
        return cls(found[1] or found[2] or _ALL_INTERFACES, int(found[3]))

    @property
    def is_on_all_interfaces(self) -> bool:
        """True if a listener is on all interfaces, so that this is no host for clients."""
        return self.host in (_ALL_INTERFACES, "::")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listeners_at(address: Listener) -> str:
    """Return ``listeners`` with Kafka's framing at an address, and gRPC at a free port of the same host."""
    return f"{KAFKA_LISTENER}://{address},{GRPC_LISTENER}://{address._replace(port=0)}"


def parse_listeners(text: str) -> dict[str, Listener]:
    """Parse ``listeners``: addresses by names, which are upper-case.

    Raises ``ValueError`` for malformed listeners, and for names or ports that two listeners have.
    """
    found = _parse(text)
    by_port: dict[int, list[str]] = {}
    for name, address in found.items():
        if address.port:
            by_port.setdefault(address.port, []).append(name)
    for port, names in by_port.items():
        if len(names) > 1 and not _are_both_versions([found[name].host for name in names]):
            raise ValueError(
                f"each listener has a port of its own, and {' and '.join(names)} have port {port}: change one "
                "(two listeners may share it if one has an IPv4 address and the other an IPv6 address)"
            )
    return found


def parse_advertised_listeners(text: str) -> dict[str, Listener]:
    """Parse ``advertised.listeners``: addresses for clients by names. Port 0 is that of the listener.

    Raises ``ValueError`` for malformed listeners, and for an address that clients cannot reach.
    """
    found = _parse(text)
    for name, address in found.items():
        if address.is_on_all_interfaces:
            raise ValueError(f"clients cannot reach {name}://{address}: name the host by which they reach this broker")
    return found


def _parse(text: str) -> dict[str, Listener]:
    found: dict[str, Listener] = {}
    for part in text.split(","):
        match = _LISTENER.fullmatch(part.strip())
        if match is None or int(match[4]) > _PORT_MAX:
            raise ValueError(f"{part.strip()!r} is not a listener: expected NAME://host:port, separated by commas")
        name = match[1].upper()
        if name in found:
            raise ValueError(f"each listener has a name of its own, and two have the name {name}: rename one")
        found[name] = Listener(match[2] or match[3] or _ALL_INTERFACES, int(match[4]))
    return found


def _are_both_versions(hosts: list[str]) -> bool:
    """Return whether two hosts are an IPv4 and an IPv6 address, which may have the same port (KIP-797)."""
    try:
        return sorted(ip_address(host).version for host in hosts) == [4, 6]
    except ValueError:
        return False


def parse_protocols(text: str) -> dict[str, ListenerProtocol]:
    """Parse ``listener.protocol.map``: protocols by upper-case names. Raises ``ValueError``."""
    found: dict[str, ListenerProtocol] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (each.strip() for each in part.partition(":"))
        if not (name and colon):
            raise ValueError(f"{part!r} is no entry of the map: expected NAME:kafka or NAME:grpc")
        if protocol.lower() not in (*ListenerProtocol,):
            raise ValueError(f"protocol {protocol} of {name} is not known: expected kafka or grpc")
        if name.upper() in found:
            raise ValueError(f"listener {name.upper()} has two protocols: remove one")
        found[name.upper()] = ListenerProtocol(protocol.lower())
    return found


def parse_security_protocols(text: str) -> dict[str, SecurityProtocol]:
    """Parse ``listener.security.protocol.map``: security protocols by upper-case names. Raises ``ValueError``."""
    found: dict[str, SecurityProtocol] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (each.strip() for each in part.partition(":"))
        if not (name and colon) or protocol.upper() not in (*SecurityProtocol,):
            raise ValueError(f"{part!r} is no entry of the map: expected NAME:{'|'.join(SecurityProtocol)}")
        if name.upper() in found:
            raise ValueError(f"listener {name.upper()} has two security protocols: remove one")
        found[name.upper()] = SecurityProtocol(protocol.upper())
    return found


def check_listeners(
    listening: Mapping[str, Listener],
    advertised: Mapping[str, Listener],
    protocols: Mapping[str, ListenerProtocol],
    inter_broker: str,
) -> str:
    """Check that the options of listeners fit together. Return the name of the listener between brokers.

    ``inter_broker`` is the configured name. If it is empty, brokers use the first advertised listener that takes kafka.
    Raises ``ValueError``.
    """
    for name in advertised:
        if name not in listening:
            raise ValueError(
                f"advertised.listeners names {name}, which listeners does not: add {name}://host:port to listeners"
            )
    framing = [name for name in advertised if protocols.get(name, ListenerProtocol.KAFKA) is ListenerProtocol.KAFKA]
    if not framing:
        raise ValueError(
            "no advertised listener has the protocol kafka, by which clients and brokers connect: add "
            f"{KAFKA_LISTENER}://host:port to listeners, and to advertised.listeners if that is set"
        )
    if not inter_broker:
        return framing[0]
    if inter_broker.upper() not in framing:
        raise ValueError(
            f"inter.broker.listener.name={inter_broker} is no advertised listener of the protocol kafka: expected "
            f"{' or '.join(framing)}"
        )
    return inter_broker.upper()


def check_control_plane(
    name: str,
    inter_broker: str,
    advertised: Mapping[str, Listener],
    protocols: Mapping[str, ListenerProtocol],
) -> None:
    """Check that ``control.plane.listener.name`` is a listener of its own. Raises ``ValueError``."""
    if name == inter_broker:
        raise ValueError(
            f"control.plane.listener.name={name} is the listener between brokers too: name another one, or leave the "
            "option out"
        )
    if name not in advertised or protocols.get(name, ListenerProtocol.KAFKA) is not ListenerProtocol.KAFKA:
        raise ValueError(
            f"control.plane.listener.name={name} is no advertised listener of the protocol kafka: add "
            f"{name}://host:port to listeners, and to advertised.listeners if that is set"
        )
