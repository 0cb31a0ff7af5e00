"""Tests of options whose values are secrets."""

from __future__ import annotations

import re

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.zookeeper import ZooKeeperConfig


def test_options_that_are_named_as_secrets_are_secrets() -> None:
    """A new password option without ``repr=False`` would be shown by DescribeConfigs."""
    named = re.compile(r"(password|secret|jaas\.config|keystore\.key|secret\.key|credentials)$")
    wanted = {option for option in BrokerConfig.option_names() if named.search(option)}
    assert wanted == {option for option in BrokerConfig.option_names() if BrokerConfig.is_secret(option)}


def test_the_passwords_for_zookeeper_are_in_no_repr() -> None:
    passwords = {"zookeeper.sasl.password": "pw-of-user", "zookeeper.ssl.keystore.password": "pw-of-key"}
    config = BrokerConfig.load({"zookeeper.connect": "localhost", **passwords})
    assert config.zookeeper_config is not None
    assert config.zookeeper_config.zookeeper_sasl_password == "pw-of-user"
    assert "pw-of" not in repr(config)
    assert all(ZooKeeperConfig.is_secret(option) for option in passwords)


@pytest.mark.parametrize(
    ("option", "is_secret"),
    [
        ("listener.name.internal.ssl.keystore.password", True),
        ("listener.name.internal.scram-sha-512.sasl.jaas.config", True),
        ("listener.name.internal.ssl.keystore.location", False),
        ("password.encoder.iterations", False),
        ("delegation.token.max.lifetime.ms", False),
        ("an.unknown.password", True),
    ],
)
def test_an_option_is_secret_also_for_one_listener(option: str, is_secret: bool) -> None:
    assert BrokerConfig.is_secret(option) is is_secret
