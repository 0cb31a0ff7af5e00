"""Helpers for TCP sockets.

They enable keep-alive, recognise this host's addresses, and prove that no process listens at an address.
"""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Final

KEEPALIVE_S: Final = 60
"""Silence after which a peer is probed. Its connection is closed after another ``KEEPALIVE_TIMEOUT_S``."""
KEEPALIVE_TIMEOUT_S: Final = 20
_ANY_PORT: Final = 9


def keep_alive(sock: socket.socket) -> None:
    """Enable keep-alive, so that the kernel detects a peer that vanished without closing."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_TIMEOUT_S // 2),
        ("TCP_KEEPCNT", 2),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def has_hung_up(sock: socket.socket) -> bool:
    """Return whether the peer has closed its side, even if bytes wait to be read."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0))  # POLLHUP and POLLERR are always reported
    return bool(poll.poll(0))


def is_own_address(host: str) -> bool:
    """Return whether an IP address is this host's. Any address of the host counts, not only loopback."""
    if host == "::1" or host.startswith("127."):
        return True
    # For a destination among its own addresses, and only then, the host uses that address as source. Nothing is sent.
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _ANY_PORT))
            return str(probe.getsockname()[0]) == host
    except OSError:
        return False


async def is_refused(host: str, port: int, timeout_s: float) -> bool:
    """Return whether every address of a host refuses a new connection, so that no process listens there.

    Only ``ECONNREFUSED`` counts. A listener with a full backlog drops the request, which ends in a timeout. A listener
    with too many connections accepts and closes. Timeouts, unreachable networks and unresolvable names prove nothing
    about the process.
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
    except OSError:  # TimeoutError is one too
        return False
    return bool(found)
