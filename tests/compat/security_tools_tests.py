"""Tests of Kafka's unmodified tools with SASL and TLS.

The tests use each SASL mechanism, and TLS with a client's certificate. The name of the file keeps pytest from
collecting it with the tests of millrace. ``tools`` runs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..oidc_provider import CLIENT_ID, SECRET
from .install import KAFKA_PROGRAMS
from .kafka_tools import KafkaTools
from .security import KEY_PASSWORD, client_options

_SASL = os.environ.get("COMPAT_SASL", "")
_SSL = os.environ.get("COMPAT_SSL", "")
"""The listener for clients with certificates."""
_STORES = Path(os.environ.get("COMPAT_STORES", "."))
_TOKENS = os.environ.get("COMPAT_TOKENS", "")
"""The endpoint of the provider of tokens."""
_TOOLS = KafkaTools(
    Path(os.environ.get("COMPAT_KAFKA_HOME", ".")), f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={_TOKENS}"
)
_OAUTH = "org.apache.kafka.common.security.oauthbearer"


@pytest.fixture(scope="module", autouse=True)
def _closed_tools() -> Iterator[None]:
    yield
    _TOOLS.close()


def token_options() -> str:
    return (
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url={_TOKENS}\n"
        f"sasl.login.callback.handler.class={_OAUTH}.OAuthBearerLoginCallbackHandler\n"
        f"sasl.oauthbearer.client.credentials.client.id={CLIENT_ID}\n"
        f"sasl.oauthbearer.client.credentials.client.secret={SECRET}\n"
        f"sasl.jaas.config={_OAUTH}.OAuthBearerLoginModule required;\n"
    )


def tls_options(key_store: str) -> str:
    trusting = f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={_STORES / 'authority_pem'}\n"
    return (
        trusting
        + {
            "none": "",
            "PEM": f"ssl.keystore.type=PEM\nssl.keystore.location={_STORES / 'client.pem'}\n",
            "PKCS12": f"ssl.keystore.type=PKCS12\nssl.keystore.location={_STORES / 'pkcs12'}\n"
            f"ssl.keystore.password={KEY_PASSWORD}\nssl.key.password={KEY_PASSWORD}\n",
        }[key_store]
    )


class Client:
    """Tools with the properties of a client."""

    def __init__(self, folder: Path, address: str, options: str) -> None:
        path = folder / "client.properties"
        path.write_text(options)
        self._options = ["--bootstrap-server", address, "--command-config", str(path)]

    def run(self, name: str, *arguments: str, input: str = "") -> tuple[int, str]:
        ended = _TOOLS.run(KAFKA_PROGRAMS[name], [*self._options, *arguments], input)
        return ended.code, ended.stdout + ended.stderr

    def writes_and_reads(self, topic: str) -> None:
        for arguments in (["--create", "--topic", topic], ["--list"]):
            code, output = self.run("kafka-topics", *arguments)
            assert (code, topic in output) == (0, True), output
        assert self.run("kafka-console-producer", "--topic", topic, input="a value\n")[0] == 0
        wanted = ["--topic", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "30000"]
        code, output = self.run("kafka-console-consumer", *wanted)
        assert (code, "a value" in output) == (0, True), output


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_tools_write_and_read_with_each_sasl_mechanism(tmp_path: Path, mechanism: str) -> None:
    options = token_options() if mechanism == "OAUTHBEARER" else client_options(mechanism)
    Client(tmp_path, _SASL, options).writes_and_reads(f"sasl-{mechanism}-{os.getpid()}")


@pytest.mark.parametrize("key_store", ["PEM", "PKCS12"])
def test_tools_write_and_read_with_a_tls_certificate(tmp_path: Path, key_store: str) -> None:
    Client(tmp_path, _SSL, tls_options(key_store)).writes_and_reads(f"tls-{key_store}-{os.getpid()}")


def test_tools_without_a_tls_certificate_fail_in_the_handshake(tmp_path: Path) -> None:
    code, output = Client(tmp_path, _SSL, tls_options("none")).run("kafka-topics", "--list")
    assert (code, "handshake" in output) == (1, True), output
