"""Tests of ``sasl.jaas.config``."""

from __future__ import annotations

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.client import ClientConfig
from millrace.config.jaas import parse_jaas
from millrace.errors import InvalidConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f'{PLAIN} required username="a" password="b";', {"username": "a", "password": "b"}),
        (f"{PLAIN} required\n  username=a\n  password='b c' ;\n", {"username": "a", "password": "b c"}),
        (f'{PLAIN} REQUIRED user_x="q\\"\\\\; =";', {"user_x": 'q"\\; ='}),
        (f"{PLAIN} sufficient;", {}),
        (f'{PLAIN} required user_a="b;";\nx.OAuthBearerLoginModule required ;', {"user_a": "b;"}),
    ],
)
def test_the_options_of_the_login_module_are_read(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == options


@pytest.mark.parametrize(
    "text", ["swordfish", f"{PLAIN} required password=swordfish", f'{PLAIN} required "swordfish";']
)
def test_a_malformed_configuration_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="expected a login module") as raised:
        ClientConfig.load({"sasl.jaas.config": text})
    assert "swordfish" not in str(raised.value)


def test_a_listener_takes_kafkas_name_for_one_mechanism() -> None:
    jaas = f'{PLAIN} required user_a="b";'
    config = BrokerConfig.load({"listener.name.plaintext.plain.sasl.jaas.config": jaas})
    assert config.security_of("PLAINTEXT").login == {"user_a": "b"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"security.protocol": "SASL_SSL"}, "set sasl.username and sasl.password"),
        ({"security.protocol": "SASL_SSL", "sasl.username": "a"}, "set sasl.username and sasl.password"),
        ({"sasl.mechanism": "DIGEST-MD5"}, "sasl.mechanism='DIGEST-MD5'"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "needs sasl.oauthbearer.token.endpoint.url",
        ),
        ({"sasl.jaas.config": f'{PLAIN} required username="a";', "sasl.username": "a"}, "remove one"),
    ],
)
def test_wrong_options_of_clients_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidConfigError, match=problem):
        ClientConfig.load(options)


def test_a_mechanism_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(InvalidConfigError, match="SASL mechanism DIGEST-MD5 is not supported: expected PLAIN"):
        BrokerConfig.load({"sasl.enabled.mechanisms": "PLAIN,DIGEST-MD5"})


def test_the_modules_of_a_listeners_mechanisms_are_taken_together() -> None:
    config = BrokerConfig.load(
        {
            "listener.name.plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_a="b";',
            "listener.name.plaintext.oauthbearer.sasl.jaas.config": "x.OAuthBearerLoginModule required scope=c;",
        }
    )
    assert config.security_of("PLAINTEXT").login == {"user_a": "b", "scope": "c"}


def test_two_values_of_an_option_are_refused_without_the_values() -> None:
    with pytest.raises(InvalidConfigError, match="the login modules have two values of password") as raised:
        ClientConfig.load({"sasl.jaas.config": f"{PLAIN} required password=sword; {PLAIN} required password=fish;"})
    assert "fish" not in str(raised.value)
