from __future__ import annotations

import pytest

from millrace.config.zookeeper import ZooKeeperAddress, ZooKeeperConfig
from millrace.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("a:1", "a:1", ""),
        ("a, b:2 ,c/kafka/one", "a:2181,b:2,c:2181", "/kafka/one"),
        ("[::1]:7,[::2]/", "[::1]:7,[::2]:2181", ""),
    ],
)
def test_addresses_name_servers_and_a_chroot(text: str, hosts: str, chroot: str) -> None:
    assert ZooKeeperAddress.parse(text) == (hosts, chroot)


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [("127.0.0.1:1/chroot", True), ("localhost,[::1]:7,[::1]", True), ("127.0.0.1:1,203.0.113.7:1", False)],
)
def test_an_ensemble_is_on_loopback_if_all_servers_are(text: str, is_loopback: bool) -> None:
    assert ZooKeeperAddress.parse(text).is_loopback is is_loopback


@pytest.mark.parametrize("text", ["", "/kafka", "a,,b", "a:x", "a:0", "a:99999", "a:1//b", "a:1/.."])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"zookeeper\.connect="):
        ZooKeeperConfig.load({"zookeeper.connect": text})


def test_the_defaults_are_kafkas() -> None:
    config = ZooKeeperConfig.load({"zookeeper.connect": "a:1"})
    assert (config.zookeeper_session_timeout_ms, config.connection_timeout_ms) == (18_000, 18_000)
    assert not config.zookeeper_set_acl
    assert config.sasl_options() is None
    other = ZooKeeperConfig.load({"zookeeper.connect": "a:1", "zookeeper.connection.timeout.ms": "5"})
    assert other.connection_timeout_ms == 5


def test_nodes_are_not_given_to_a_client_without_proof_of_its_identity() -> None:
    values = {"zookeeper.connect": "a:1", "zookeeper.set.acl": "true"}
    with pytest.raises(InvalidConfigError, match=r"zookeeper\.sasl\.mechanism, or"):
        ZooKeeperConfig.load(values)
    ZooKeeperConfig.load(values | {"zookeeper.sasl.mechanism": "GSSAPI"})
    with pytest.raises(InvalidConfigError, match=r"sasl\.username"):
        ZooKeeperConfig.load(values | {"zookeeper.sasl.mechanism": "DIGEST-MD5"})


def test_passwords_are_not_shown() -> None:
    with pytest.raises(InvalidConfigError) as raised:
        ZooKeeperConfig.load({"zookeeper.connect": "a:1", "zookeeper.ssl.keystore.password": ["horse"]})
    assert "horse" not in raised.value.message


def test_a_java_keystore_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"keystore\.type='JKS'.*PKCS12"):
        ZooKeeperConfig.load({"zookeeper.connect": "a:1", "zookeeper.ssl.keystore.type": "JKS"})
