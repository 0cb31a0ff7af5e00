"""Connections to a listener for gRPC that make no call."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from millrace.clients import Admin
from millrace_broker.listeners import grpc_server
from millrace_broker.testing import EmbeddedBroker

from ..certificates import Authority

MAX = 8
SOON_S = 100
"""Less than the two minutes after which gRPC by itself closes such a connection."""


def is_closed_soon(sock: socket.socket) -> bool:
    """Return whether the broker closes a connection, after it has sent its settings perhaps."""
    sock.settimeout(SOON_S)
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("has_tls", [False, True])
def test_connections_that_say_nothing_are_few_and_closed_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    monkeypatch.setattr(grpc_server, "_HANDSHAKE_MS", 1000)
    monkeypatch.setattr(grpc_server, "_connections_max", lambda config: MAX)
    options = {"listeners": "PLAINTEXT://127.0.0.1:0,GRPC://127.0.0.1:0"}
    authority = Authority.make()
    ca = authority.write(tmp_path / "ca.pem")
    if has_tls:
        options["listener.security.protocol.map"] = "GRPC:SSL"
        options["ssl.keystore.location"] = authority.issue("CN=broker").write(tmp_path / "broker.pem")
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, ExitStack() as stack:
        port = broker.server.ports["GRPC"]
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2 * MAX)]
        assert all(map(is_closed_soon, silent))
        client = {"bootstrap.servers": f"127.0.0.1:{port}", "transport": "grpc"}
        if has_tls:
            client |= {"security.protocol": "SSL", "ssl.truststore.location": ca}
        with Admin(client) as admin:
            admin.list_topics()
