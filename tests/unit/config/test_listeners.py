"""Tests of a broker's listeners by Kafka's syntax and rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener, ListenerProtocol, listeners_at, parse_listeners
from millrace.errors import InvalidConfigError

_NAMES = st.from_regex(r"[A-Z][A-Z0-9_.-]{0,8}", fullmatch=True).filter(lambda name: name not in ("SSL",))
_HOSTS = st.sampled_from(["localhost", "127.0.0.1", "10.0.0.7", "::1", "fe80::1", "broker-1.example.org"])


@pytest.mark.parametrize(
    ("text", "listener"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), (":9092", ("0.0.0.0", 9092)), ("[::1]:80", ("::1", 80))],
)
def test_addresses_are_read(text: str, listener: tuple[str, int]) -> None:
    assert Listener.parse(text) == listener


def test_an_ipv6_address_is_written_with_brackets() -> None:
    assert str(Listener("::1", 80)) == "[::1]:80"


@given(st.dictionaries(_NAMES, st.tuples(_HOSTS, st.integers(1, 65535)), min_size=1, max_size=4))
def test_listeners_that_were_written_are_read(listeners: dict[str, tuple[str, int]]) -> None:
    found = {name: Listener(*address) for name, address in listeners.items()}
    if len({address.port for address in found.values()}) < len(found):
        return
    assert parse_listeners(",".join(f"{name}://{address}" for name, address in found.items())) == found


def test_names_are_read_in_any_case_and_an_empty_host_is_all_interfaces() -> None:
    assert parse_listeners(" internal://:9092 , Grpc://[::]:9093") == {
        "INTERNAL": Listener("0.0.0.0", 9092),
        "GRPC": Listener("::", 9093),
    }


def test_an_ipv4_and_an_ipv6_address_may_have_the_same_port() -> None:
    assert len(parse_listeners("A://127.0.0.1:9092,B://[::1]:9092")) == 2


def test_by_default_there_are_kafkas_framing_at_9092_and_grpc_at_a_free_port() -> None:
    config = BrokerConfig.load({})
    assert config.listeners == listeners_at(Listener("127.0.0.1", 9092))
    assert config.listener_addresses == {"PLAINTEXT": ("127.0.0.1", 9092), "GRPC": ("127.0.0.1", 0)}
    assert config.advertised_addresses == config.listener_addresses
    assert config.protocol_of("PLAINTEXT") is ListenerProtocol.KAFKA
    assert config.protocol_of("GRPC") is ListenerProtocol.GRPC
    assert config.inter_broker_listener == "PLAINTEXT"


def test_a_listener_has_the_protocol_of_the_map() -> None:
    config = BrokerConfig.load(
        {
            "listeners": "CLIENTS://:9092,BROKERS://:9093,OTHERS://:9094",
            "advertised.listeners": "BROKERS://inside:9093,CLIENTS://outside:19092",
            "listener.protocol.map": "others:grpc,CLIENTS:KAFKA",
            "inter.broker.listener.name": "clients",
        }
    )
    assert config.protocol_of("OTHERS") is ListenerProtocol.GRPC
    assert config.protocol_of("BROKERS") is ListenerProtocol.KAFKA
    assert config.advertised_addresses == {"BROKERS": ("inside", 9093), "CLIENTS": ("outside", 19092)}
    assert config.inter_broker_listener == "CLIENTS"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"listeners": "host"}, "'host' is not a listener: expected NAME://host:port"),
        ({"listeners": "127.0.0.1:9092"}, "expected NAME://host:port"),
        ({"listeners": "A://h:99999"}, "'A://h:99999' is not a listener"),
        ({"listeners": "A://h:1,"}, "'' is not a listener"),
        ({"listener.security.protocol.map": "PLAINTEXT:TLS"}, "expected NAME:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL"),
        ({"listener.security.protocol.map": "A:SSL,a:SSL"}, "listener A has two security protocols"),
        ({"listener.name.other.ssl.client.auth": "none"}, "listener OTHER, which listeners does not name"),
        ({"listener.name.plaintext.log.dirs": "x"}, "is no option of a listener"),
        ({"listener.name.plaintext.ssl.client.auth": "maybe"}, "listener PLAINTEXT: ssl.client.auth='maybe'"),
        ({"listeners": "A://h:1,a://h:2"}, "two have the name A"),
        ({"listeners": "A://h:1,B://g:1"}, "A and B have port 1"),
        ({"listeners": "GRPC://h:1"}, "no advertised listener has the protocol kafka"),
        ({"advertised.listeners": "OTHER://h:1"}, "advertised.listeners names OTHER, which listeners does not"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "clients cannot reach PLAINTEXT://0.0.0.0:1"),
        ({"advertised.listeners": "PLAINTEXT://:1"}, "clients cannot reach"),
        ({"advertised.listeners": "GRPC://h:1"}, "no advertised listener has the protocol kafka"),
        ({"listener.protocol.map": "A:http"}, "protocol http of A is not known: expected kafka or grpc"),
        ({"listener.protocol.map": "A"}, "expected NAME:kafka or NAME:grpc"),
        ({"listener.protocol.map": "A:grpc,a:kafka"}, "listener A has two protocols"),
        ({"inter.broker.listener.name": "GRPC"}, "inter.broker.listener.name=GRPC is no advertised listener"),
        ({"sasl.server.max.receive.size": "9"}, "cannot be set: it is always 131072 bytes here"),
        ({"listener.name.o.plain.connections.max.reauth.ms": "9"}, "an option of listener O, which listeners does not"),
        ({"listener.name.plaintext.plain.connections.max.reauth.ms": "x"}, "connections.max.reauth.ms='x'"),
        ({"frame.listener.port": "9093"}, "frame.listener.port is gone: listeners and advertised.listeners have"),
        ({"advertised_frame_port": "9093"}, "such as listeners=PLAINTEXT://host:9092,GRPC://host:9093"),
    ],
)
def test_wrong_listeners_are_refused_with_the_remedy(values: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        BrokerConfig.load(values)
    assert message in caught.value.message


def test_options_of_one_listener_override_those_of_all() -> None:
    config = BrokerConfig.load(
        {
            "listeners": "PLAINTEXT://h:1,INTERNAL://h:2,SSL://h:3,SASL_SSL://h:4",
            "listener.security.protocol.map": "INTERNAL:SASL_SSL",
            "ssl.client.auth": "requested",
            "ssl.keystore.location": "all.pem",
            "listener.name.internal.ssl.client.auth": "required",
        }
    )
    found = {name: config.security_protocol_of(name).value for name in config.listener_addresses}
    assert found == {"PLAINTEXT": "PLAINTEXT", "INTERNAL": "SASL_SSL", "SSL": "SSL", "SASL_SSL": "SASL_SSL"}
    assert config.security_of("INTERNAL").ssl_client_auth == "required"
    assert config.security_of("INTERNAL").ssl_keystore_location == "all.pem"
    assert config.security_of("SSL").ssl_client_auth == "requested"
    assert config.security_of("SASL_SSL").ssl_client_auth == "none", "as in Kafka (KIP-684)"
    assert BrokerConfig.load(config.options()) == config, "as a dynamic change loads it"


def test_options_of_one_mechanism_override_those_of_its_listener() -> None:
    prefix = "listener.name.inside"
    config = BrokerConfig.load(
        {
            "listeners": "INSIDE://h:1",
            "listener.security.protocol.map": "INSIDE:SASL_SSL",
            "connections.max.reauth.ms": "5",
            f"{prefix}.plain.connections.max.reauth.ms": "0",
            f"{prefix}.scram-sha-512.connections.max.reauth.ms": "7",
            f"{prefix}.sasl.oauthbearer.expected.audience": "all",
            f"{prefix}.oauthbearer.sasl.oauthbearer.expected.audience": "mine",
        }
    )
    assert config.security_of("INSIDE").connections_max_reauth_ms == 5
    assert config.max_reauth_ms_by_mechanism("INSIDE") == {"PLAIN": 0, "SCRAM-SHA-512": 7}
    assert config.security_of("INSIDE").sasl_oauthbearer_expected_audience == "mine"
    assert BrokerConfig.load(config.options()) == config, "as a dynamic change loads it"


def test_the_protocol_between_brokers_names_their_listener() -> None:
    with pytest.warns(FutureWarning, match=r"now called inter\.broker\.listener\.name"):
        config = BrokerConfig.load(
            {"listeners": "PLAINTEXT://h:1,SASL_SSL://h:2", "security.inter.broker.protocol": "SASL_SSL"}
        )
    assert config.inter_broker_listener == "SASL_SSL"
