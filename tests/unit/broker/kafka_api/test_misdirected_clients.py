"""Tests of the log of clients that come to the wrong broker."""

from __future__ import annotations

import pytest

from millrace_broker.kafka_api.misdirected_clients import PERIOD_S, REQUESTS_MAX, MisdirectedClients


def test_a_client_is_logged_once_a_period_after_too_many_requests(caplog: pytest.LogCaptureFixture) -> None:
    clients = MisdirectedClients()
    for number in range(2 * REQUESTS_MAX):
        clients.note("10.0.0.1", "app", now=1000 + number / REQUESTS_MAX)
    for _ in range(REQUESTS_MAX):
        clients.note("10.0.0.2", "normal", now=1001)
    assert [each.args for each in caplog.records] == [("app", "10.0.0.1")]
    for _ in range(REQUESTS_MAX + 1):
        clients.note("10.0.0.1", "app", now=1000 + PERIOD_S)
    assert len(caplog.records) == 2


def test_requests_of_another_period_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    clients = MisdirectedClients()
    for period in range(3):
        for _ in range(REQUESTS_MAX):
            clients.note("10.0.0.1", "app", now=1000 + period * PERIOD_S)
    assert not caplog.records


def test_the_number_of_counted_hosts_is_bounded() -> None:
    clients = MisdirectedClients()
    for number in range(5000):
        clients.note(f"host-{number}", "app", now=1000)
    assert len(clients._counts) == 1000
