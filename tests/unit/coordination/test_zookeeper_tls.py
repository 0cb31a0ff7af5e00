from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from millrace.config.zookeeper import ZooKeeperConfig
from millrace.coordination.zookeeper_tls import zookeeper_tls
from millrace.errors import InvalidConfigError


def test_there_is_no_tls_by_default() -> None:
    assert zookeeper_tls(ZooKeeperConfig.load({"zookeeper.connect": "a:1"})) is None


def test_a_certificate_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("nothing")
    values = {"zookeeper.connect": "a:1", "zookeeper.ssl.client.enable": "true"}
    for file in ("x.pem", "missing.pem"):
        config = ZooKeeperConfig.load(values | {"zookeeper.ssl.keystore.location": str(tmp_path / file)})
        with pytest.raises(InvalidConfigError, match=file):
            zookeeper_tls(config)


def test_host_names_are_verified_unless_an_option_forbids_it() -> None:
    values = {"zookeeper.connect": "a:1", "zookeeper.ssl.client.enable": "true"}
    strict = zookeeper_tls(ZooKeeperConfig.load(values))
    lax = zookeeper_tls(ZooKeeperConfig.load(values | {"zookeeper.ssl.endpoint.identification.algorithm": ""}))
    assert strict is not None
    assert strict.value.check_hostname
    assert lax is not None
    assert not lax.value.check_hostname


def test_versions_and_suites_are_those_of_the_options() -> None:
    values = {"zookeeper.connect": "a:1", "zookeeper.ssl.client.enable": "true"}
    chosen = values | {
        "zookeeper.ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,ECDHE-RSA-AES128-GCM-SHA256"
    }
    tls = zookeeper_tls(ZooKeeperConfig.load(chosen))
    assert tls is not None
    suites = {each["name"] for each in tls.value.get_ciphers() if each["protocol"] != "TLSv1.3"}
    assert suites == {"ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"}
    assert tls.value.minimum_version == ssl.TLSVersion.TLSv1_2
    newest = zookeeper_tls(ZooKeeperConfig.load(values | {"zookeeper.ssl.protocol": "TLSv1.3"}))
    assert newest is not None
    assert newest.value.minimum_version == ssl.TLSVersion.TLSv1_3
