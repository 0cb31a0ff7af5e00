"""Tests of the configuration in force and of its listeners."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.config.broker import BrokerConfig
from millrace.coordination import Coordination, EmbeddedStore
from millrace.errors import InvalidConfigError
from millrace_broker.config import LiveConfig
from millrace_broker.metadata import BrokerConfigs, registration


@pytest.fixture
def coordination() -> Iterator[Coordination]:
    store = EmbeddedStore(now_ms=lambda: 0)
    session = store.connect()
    registration.ensure_roots(session)
    yield session
    store.close()


@pytest.fixture
def live(coordination: Coordination) -> LiveConfig:
    config = BrokerConfig.load({"broker.id": "1", "num.io.threads": "4"})
    return LiveConfig(BrokerConfigs(coordination, config))


def test_listeners_are_called_in_order_and_find_the_new_configuration(live: LiveConfig) -> None:
    told: list[tuple[str, int, int]] = []
    for name in ("first", "second"):
        live.subscribe(
            lambda config, name=name: told.append((name, config.num_io_threads, live.current.num_io_threads))
        )
    live.alter("", {"num.io.threads": "6"}, set())
    assert told == [("first", 6, 6), ("second", 6, 6)]


def test_a_refused_option_changes_nothing_and_notifies_no_listener(live: LiveConfig) -> None:
    live.subscribe(lambda config: pytest.fail("nothing has changed"))
    with pytest.raises(InvalidConfigError):
        live.alter("", {"num.io.threads": "4000"}, set())
    assert live.current.num_io_threads == 4


def test_options_of_another_broker_are_not_read(live: LiveConfig) -> None:
    live.subscribe(lambda config: pytest.fail("the option is another broker's"))
    live.reload("2")
