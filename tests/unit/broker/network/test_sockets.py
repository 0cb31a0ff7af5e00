"""Tests of refused connections and of the addresses of this host."""

from __future__ import annotations

import asyncio
import socket

import pytest

from millrace_broker.network.sockets import is_own_address, is_refused

ELSEWHERE = "203.0.113.7"
"""A range reserved for documentation (RFC 5737), so no host has such an address."""


def refused(host: str, port: int) -> bool:
    return asyncio.run(is_refused(host, port, 0.5))


def test_a_port_refuses_connections_once_its_listener_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not refused("127.0.0.1", port), "the kernel has accepted the connection, and no process has"
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


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_is_an_own_address(host: str) -> None:
    assert is_own_address(host)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_any_address_of_the_host_is_an_own_address(family: socket.AddressFamily) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE if family == socket.AF_INET else "2001:db8::7", 9))
        except OSError:
            pytest.skip("this host has no address of this kind but loopback")
        own = probe.getsockname()[0]
    assert is_own_address(own)


@pytest.mark.parametrize("host", [ELSEWHERE, "2001:db8::7", "no address", ""])
def test_addresses_of_other_hosts_are_not_own_ones(host: str) -> None:
    assert not is_own_address(host)
