"""Tests of the limit on the open connections of each address."""

from __future__ import annotations

import pytest

from millrace.config.broker import BrokerConfig
from millrace.errors import InvalidConfigError
from millrace_broker.quotas.address_connections import AddressConnections


def addresses(**options: str) -> AddressConnections:
    return AddressConnections(config(**options))


def config(**options: str) -> BrokerConfig:
    return BrokerConfig.load({f"max.connections.per.ip{name}": value for name, value in options.items()})


def test_an_address_has_no_more_connections_than_its_limit() -> None:
    limited = addresses(**{"": "1", ".overrides": "192.0.2.7:2, [2001:db8::07]:0"})
    assert limited.opened("192.0.2.8")
    assert not limited.opened("192.0.2.8")
    limited.closed("192.0.2.8")
    limited.closed("192.0.2.8")
    assert limited.opened("192.0.2.8"), "closed ones are not counted"
    assert [limited.opened(host) for host in ("192.0.2.7", "::ffff:192.0.2.7", "192.0.2.7")] == [True, True, False]
    assert not limited.opened("2001:db8::7")


def test_changed_limits_apply_to_new_connections() -> None:
    limited = addresses()
    assert all(limited.opened("192.0.2.7") for _ in range(3))
    limited.take_config(config(**{"": "3"}))
    assert not limited.opened("192.0.2.7")
    limited.take_config(config(**{"": "5"}))
    assert limited.opened("192.0.2.7")


@pytest.mark.parametrize("text", ["192.0.2.7", "192.0.2.7:", "192.0.2.7:-1", "192.0.2.7:4294967296", "localhost:5"])
def test_a_wrong_override_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="is no limit of an address"):
        config(**{".overrides": text})


def test_no_connections_for_anyone_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"set max\.connections\.per\.ip\.overrides"):
        config(**{"": "0"})
    assert config(**{"": "0", ".overrides": "127.0.0.1:9"}).connections_max_by_address == {"127.0.0.1": 9}
