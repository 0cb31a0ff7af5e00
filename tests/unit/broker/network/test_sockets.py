"""What counts as a refused connection."""

from __future__ import annotations

import asyncio
import socket

import pytest

from millrace_broker.network.sockets import is_refused


def refused(host: str, port: int) -> bool:
    return asyncio.run(is_refused(host, port, 0.5))


def test_a_port_is_refused_once_nobody_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not refused("127.0.0.1", port), "nobody has accepted, and the kernel has"
    assert refused("127.0.0.1", port)


def test_a_listener_whose_backlog_is_full_does_not_refuse() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        waiting = []
        try:
            for _ in range(3):
                connection = socket.socket()
                connection.setblocking(False)
                connection.connect_ex(address)
                waiting.append(connection)
            assert not refused(*address)
        finally:
            for connection in waiting:
                connection.close()


def test_a_host_refuses_only_if_all_its_addresses_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        addresses = ["127.0.0.2", "127.0.0.1"]

        async def resolve(*_: object, **__: object) -> list[object]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, port)) for each in addresses]

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
        assert not refused("two.example", port)
        addresses.pop()
        assert refused("two.example", port)


def test_a_name_that_cannot_be_resolved_says_nothing_of_a_process() -> None:
    assert not refused("nowhere.invalid", 9092)
