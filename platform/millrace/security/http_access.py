"""Security of addresses that serve metrics: TLS with the options of listeners, and users."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import NamedTuple

from millrace.config.security_options import ListenerSecurity, SecurityProtocol
from millrace.errors import InvalidConfigError
from millrace.security.reloading import Reloading
from millrace.security.stores import TlsMaterial
from millrace.security.tls import server_context


class HttpAccess(NamedTuple):
    """Security of one address."""

    tls: Reloading[ssl.SSLContext] | None
    users: Mapping[str, str] | None
    """Passwords by the names of users; None if everybody may read."""

    @classmethod
    def of(cls, name: str, protocol: SecurityProtocol, options: ListenerSecurity) -> HttpAccess:
        """Return the access of a security protocol. Errors have the name.

        Raises ``InvalidConfigError`` for SASL without users, and for stores that cannot be used.
        """
        users = options.users if protocol.has_sasl else None
        if users is not None and not users:
            raise InvalidConfigError(
                f'{name}: {protocol} needs users: set sasl.jaas.config with user_<name>="<password>" for them'
            )
        return cls(_reloading(name, options) if protocol.has_tls else None, users)


def _reloading(name: str, options: ListenerSecurity) -> Reloading[ssl.SSLContext]:
    def make(material: TlsMaterial) -> ssl.SSLContext:
        return server_context(options, material)

    try:
        return Reloading(name, options, make)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{name}: {error.message}") from None


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host's addresses."""
    import socket
    from ipaddress import ip_address

    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False  # the listener cannot be bound, which says so
    return all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
