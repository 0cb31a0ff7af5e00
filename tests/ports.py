"""Ports of this host for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Final

_BELOW_THOSE_OF_CONNECTIONS: Final = (20_000, 32_000)


def free_port() -> int:
    """Return a port that is never the local port of an outgoing connection, while its server is down."""
    chance = random.SystemRandom()  # all processes of a test run get the same answer
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", chance.randrange(*_BELOW_THOSE_OF_CONNECTIONS)))
            return int(probe.getsockname()[1])
