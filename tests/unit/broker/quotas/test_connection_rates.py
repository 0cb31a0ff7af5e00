"""Tests of rates of new connections that change while a broker runs."""

from __future__ import annotations

from millrace.config.broker import BrokerConfig
from millrace_broker.quotas.connection_rates import ConnectionRates

RATE = "listener.name.plaintext.max.connection.creation.rate"


def delays(rates: ConnectionRates, count: int) -> list[float]:
    return [rates.opened("PLAINTEXT", "127.0.0.1").wait_s for _ in range(count)]


def test_the_rate_of_a_listener_changes_and_an_equal_one_keeps_its_use() -> None:
    rates = ConnectionRates(BrokerConfig.load({}), lambda: 0.0)
    assert not rates.is_active
    rates.take_config(BrokerConfig.load({RATE: "1"}))
    assert rates.is_active
    waits = delays(rates, 3)
    assert waits[-1] > 0
    rates.take_config(BrokerConfig.load({RATE: "1", "num.io.threads": "8"}))
    assert delays(rates, 1)[0] > waits[-1], "the debt is not forgotten"
    rates.take_config(BrokerConfig.load({RATE: "1000"}))
    assert delays(rates, 3) == [0.0, 0.0, 0.0]
    rates.take_config(BrokerConfig.load({}))
    assert not rates.is_active


def test_the_listener_between_brokers_is_exempt_from_the_brokers_rate_as_long_as_there_is_another_one() -> None:
    one = {"listeners": "PLAINTEXT://127.0.0.1:0", "max.connection.creation.rate": "1"}
    two = one | {"listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0"}
    rates = ConnectionRates(BrokerConfig.load(one), lambda: 0.0)
    assert delays(rates, 3)[-1] > 0
    rates.take_config(BrokerConfig.load(two))
    assert delays(rates, 1) == [0.0]
    rates.take_config(BrokerConfig.load(one))
    assert delays(rates, 1)[0] > 0
