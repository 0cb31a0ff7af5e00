"""Tests of changed security of calls between running brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.config.broker import BrokerConfig
from millrace_broker.network import Peers

from ....certificates import Authority


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make()


def config(directory: Path, authority: Authority, name: str, **options: str) -> BrokerConfig:
    path = directory / f"{name}.pem"
    if name != "missing":
        authority.issue(f"CN={name}").write(path)
    return BrokerConfig.load(
        {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.truststore.location": authority.write(directory / "ca.pem"),
            "listener.name.ssl.ssl.keystore.location": str(path),
            **options,
        }
    )


def test_new_connections_have_the_security_of_the_present_configuration(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    first = config(tmp_path, authority, "first")
    peers = Peers.of(first)
    before = peers._listener
    peers.take_config(config(tmp_path, authority, "first", **{"num.io.threads": "8"}))
    assert peers._listener is before, "its security is the same"
    peers.take_config(config(tmp_path, authority, "second"))
    after = peers._listener
    assert after is not before
    assert after.tls is not None
    assert after.security is not None
    assert after.security.ssl_keystore_location.endswith("second.pem")
    assert peers._control_plane is after
    peers.take_config(config(tmp_path, authority, "missing"))
    assert peers._listener is after
    assert "brokers are called with the earlier security" in caplog.text
