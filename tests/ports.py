"""Ports of this host for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Final

_BELOW_THOSE_OF_CONNECTIONS: Final = (20_000, 32_000)


def free_port() -> int:
    """A port that nobody gets for a connection of his own, while the server that is to have it is down."""
    chance = random.SystemRandom()  # the other one says the same in all processes of a test run
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", chance.randrange(*_BELOW_THOSE_OF_CONNECTIONS)))
            return int(probe.getsockname()[1])
