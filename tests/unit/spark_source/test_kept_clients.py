"""Tests of clients that a process keeps, up to a maximum."""

from __future__ import annotations

from pyspark_millrace.kept_clients import KeptClients


class _Client:
    def __init__(self, key: str) -> None:
        self.key = key
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_the_least_recently_used_client_is_closed() -> None:
    clients = KeptClients(_Client, kept_max=2)
    first, second = clients.get("a"), clients.get("b")
    assert clients.get("a") is first
    third = clients.get("c")
    assert [first.is_closed, second.is_closed, third.is_closed] == [False, True, False]
    assert clients.get("b") is not second


def test_closed_clients_are_opened_again() -> None:
    clients = KeptClients(_Client, kept_max=2)
    first = clients.get("a")
    clients.close()
    assert first.is_closed
    assert not clients.get("a").is_closed
