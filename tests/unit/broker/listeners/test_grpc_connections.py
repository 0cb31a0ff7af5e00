"""Tests of the rates of new gRPC connections, on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from millrace.config.broker import BrokerConfig
from millrace.errors import ThrottledError
from millrace.quotas import QuotaEntity
from millrace_broker.listeners import grpc_connections
from millrace_broker.listeners.grpc_connections import GrpcConnections
from millrace_broker.quotas import ConnectionRates
from millrace_broker.quotas.quota_table import QuotaTable

IDLE_S = 600.0
HOST = "10.0.0.1"


class Listener:
    """A listener whose rates are one connection a second."""

    def __init__(self, *, of_address: bool) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        rate = {} if of_address else {"max.connection.creation.rate": "1"}
        self.rates = ConnectionRates(BrokerConfig.load(rate), lambda: self.now)
        if of_address:
            self.rates.take(QuotaTable({QuotaEntity.of([("ip", HOST)]): {"connection_creation_rate": 1.0}}))
        self.connections = GrpcConnections("GRPC", IDLE_S, lambda: self.now, self._wait)

    async def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)
        self.now += seconds

    async def call(self, number: int) -> None:
        await self.connections.call_begins(f"ipv4:{HOST}:{number}", HOST, self.rates)


def test_the_first_call_of_a_connection_waits_for_the_rate_and_later_calls_do_not() -> None:
    async def run() -> None:
        listener = Listener(of_address=False)
        for number in range(4):
            await listener.call(number)
        assert listener.waits, "four connections at once are more than one a second"
        before = len(listener.waits)
        for number in range(4):
            await listener.call(number)
        assert len(listener.waits) == before

    asyncio.run(run())


def test_calls_that_begin_together_are_one_connection() -> None:
    async def run() -> None:
        listener = Listener(of_address=False)
        await asyncio.gather(*(listener.call(1) for _ in range(50)))
        assert listener.waits == []

    asyncio.run(run())


def test_a_connection_beyond_the_rate_of_its_address_is_refused_after_the_wait() -> None:
    async def run() -> None:
        listener = Listener(of_address=True)
        messages: list[str] = []
        for number in range(5):
            try:
                await listener.call(number)
            except ThrottledError as error:
                messages.append(error.message)
                await listener.call(number)  # the wait is over, so that it counts again and is taken
        assert messages
        assert all(each.startswith(HOST) and "connection_creation_rate" in each for each in messages)
        assert len(listener.waits) == len(messages)
        assert listener.connections._opening == {}

    asyncio.run(run())


def test_idle_connections_and_the_longest_idle_of_too_many_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connections, "_CONNECTIONS_MAX", 3)

    async def run() -> None:
        listener = Listener(of_address=False)
        for number in range(3):
            listener.now += 2
            await listener.call(number)
        await listener.call(0)
        listener.now += 2
        await listener.call(3)
        assert list(listener.connections._called_s) == [f"ipv4:{HOST}:{number}" for number in (2, 0, 3)]
        listener.now += IDLE_S + 1
        await listener.call(4)
        assert list(listener.connections._called_s) == [f"ipv4:{HOST}:4"]

    asyncio.run(run())
