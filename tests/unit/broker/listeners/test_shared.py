"""Who is on this host: whoever comes from one of its addresses, loopback or not."""

import socket

import pytest

from millrace_broker.listeners.shared import is_local, peer_name

ELSEWHERE = "203.0.113.7"
"""Kept for documentation (RFC 5737): no host has it."""


@pytest.mark.parametrize(
    "peer", ["ipv4:127.0.0.1:5000", "ipv4:127.1.2.3:5000", "ipv6:[::1]:5000", "ipv6:%5B::1%5D:5000", "unix:", "unix:/x"]
)
def test_loopback_is_here(peer: str) -> None:
    assert is_local(peer)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_any_address_of_the_host_is_here(family: socket.AddressFamily) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE if family == socket.AF_INET else "2001:db8::7", 9))
        except OSError:
            pytest.skip("this host has no address of the kind but loopback")
        own = probe.getsockname()[0]
    assert is_local(peer_name((own, 5000)))
    assert is_local(peer_name((own, 5000)).replace("[", "%5B").replace("]", "%5D"))


@pytest.mark.parametrize(
    "peer", [f"ipv4:{ELSEWHERE}:5000", "ipv6:[2001:db8::7]:5000", "ipv4:no address:5000", "vsock:3:5000", ""]
)
def test_others_are_not(peer: str) -> None:
    assert not is_local(peer)
