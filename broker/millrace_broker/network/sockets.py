"""TCP sockets between processes: noticing a peer that vanished, and proving that nobody listens at an address."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

KEEPALIVE_S: Final = 60
"""A silent peer is asked after this time whether it is still there, and given up after ``KEEPALIVE_TIMEOUT_S``."""
KEEPALIVE_TIMEOUT_S: Final = 20


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice a peer that vanished without closing."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_TIMEOUT_S // 2),
        ("TCP_KEEPCNT", 2),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def is_refused(host: str, port: int, timeout_s: float) -> bool:
    """Whether a new connection is refused at every address of a host: no process listens at this port.

    Only ``ECONNREFUSED`` counts. A listener whose backlog is full drops the request, which ends in a time-out. A
    listener that accepts and closes, because it has too many connections, accepts. Time-outs, unreachable networks and
    names that cannot be resolved say nothing of the process.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, address in found:
                with socket.socket(family, kind, protocol) as sock:
                    sock.setblocking(False)
                    try:
                        await loop.sock_connect(sock, address)
                    except ConnectionRefusedError:
                        continue
                    return False
    except OSError:  # a TimeoutError, too
        return False
    return bool(found)
