"""Loopback hosts. Only this machine reaches them, so they need no encryption."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Final

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""The usual names of this machine. Nothing resolves them."""


def is_loopback(host: str) -> bool:
    """Return whether a host resolves to loopback addresses only. A host that cannot be resolved does not."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False  # the attempt to listen at this host reports the problem
    return all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
