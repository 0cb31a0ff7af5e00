"""Tests of the HTTP server of metrics."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from millrace.security import https
from millrace.security.https import HttpServer

from ...integration.waiting import STALL_S


def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [])
    return [b"metrics"]


def test_clients_that_say_nothing_cannot_take_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(https, "CONNECTIONS_MAX", 3)
    server = HttpServer("127.0.0.1", 0, answer)
    silent = [socket.create_connection(server.server_address[:2], STALL_S) for _ in range(5)]
    try:
        assert [each.recv(1) for each in silent[:2]] == [b"", b""], "the server ends the oldest"
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=STALL_S) as found:
            assert found.read() == b"metrics"
        assert silent[2].recv(1) == b"", "the server has ended one more for the request"
    finally:
        for each in silent:
            each.close()
        server.close()
