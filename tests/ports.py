"""Ports of this host for servers of tests."""

from __future__ import annotations

import random
import socket
from typing import Final

_BELOW_THOSE_OF_CONNECTIONS: Final = (20_000, 32_000)
_claims: Final[list[socket.socket]] = []


def free_port() -> int:
    """Return a port for servers of this process and its children.

    It is never the local port of an outgoing connection, while its server is down. No other process of a test run gets
    it before this one ends. The port is reserved by a name in Linux's abstract namespace for sockets, which can exist
    only once.
    """
    chance = random.SystemRandom()  # all processes of a test run have the same seed
    while not claims(port := chance.randrange(*_BELOW_THOSE_OF_CONNECTIONS)):
        pass
    return port


def claims(port: int) -> bool:
    """Return whether this process claims the port; false if another one has it or uses it, or this one has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0millrace-test-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True
