"""Tests of cut links.

A link holds data in the cut direction, and delivers them after the repair.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from ..integration.waiting import STALL_S
from .network import OTHERS, Network

NEVER_S = 0.3


@pytest.fixture
def echo() -> Iterator[int]:
    """Serve a port that returns all data."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1000):
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def connected(network: Network, echo: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", network.way_to("server", echo)), STALL_S)


@pytest.mark.parametrize("link", [("me", "server"), ("server", "me")])
def test_a_link_that_is_cut_holds_what_goes_over_it(echo: int, link: tuple[str, str]) -> None:
    with (
        Network(["me", "server"], lambda name: os.getpid() if name == "me" else None) as network,
        connected(network, echo) as connection,
    ):
        connection.sendall(b"before")
        assert connection.recv(100) == b"before"
        network.cut(link)
        connection.sendall(b"held")
        connection.settimeout(NEVER_S)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        network.mend()
        connection.settimeout(STALL_S)
        assert connection.recv(100) == b"held"


def test_no_answer_arrives_over_a_cut_link(echo: int) -> None:
    with Network(["me", "server"], lambda name: os.getpid() if name == "me" else None) as network:
        network.cut(("me", "server"))
        with connected(network, echo) as connection:
            connection.sendall(b"held")
            connection.settimeout(NEVER_S)
            with pytest.raises(TimeoutError):
                connection.recv(100)
            network.mend()
            connection.settimeout(STALL_S)
            assert connection.recv(100) == b"held"


def test_a_cut_link_does_not_affect_other_links(echo: int) -> None:
    with Network(["me", "server"], lambda _: None) as network:
        network.cut(*network.all_links("server"))
        with connected(network, echo) as connection:
            connection.sendall(b"through")
            assert connection.recv(100) == b"through"
        network.cut((OTHERS, "server"))
        with connected(network, echo) as connection:
            connection.sendall(b"held")
            connection.settimeout(NEVER_S)
            with pytest.raises(TimeoutError):
                connection.recv(100)


def test_the_process_of_a_connection_is_found_by_both_ports(echo: int) -> None:
    # The system's table keeps an ended connection for a minute, with the port that the next connection may use.
    with Network(["me", "server"], lambda name: os.getpid() if name == "me" else None) as network:
        here = ("127.0.0.1", connections_that_are_over(20))
        network.cut(("me", "server"))
        there = ("127.0.0.1", network.way_to("server", echo))
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            connection.bind(here)
            connection.connect(there)
            connection.sendall(b"held")
            connection.settimeout(NEVER_S)
            with pytest.raises(TimeoutError):
                connection.recv(100)


def connections_that_are_over(count: int) -> int:
    """Return the one port from which so many connections went to as many ports. This process closed all of them."""
    port = 0
    for _ in range(count):
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            connection.bind(("127.0.0.1", port))
            port = int(connection.getsockname()[1])
            connection.connect(listener.getsockname())
            there, _ = listener.accept()
            with there:
                connection.shutdown(socket.SHUT_WR)
                assert there.recv(1) == b""
    return port
