"""Tests of options that refer to files or the environment.

Messages hide the secrets in them.
"""

import pytest

from millrace.config.client import ClientConfig, ProducerConfig
from millrace.config.secrets import shown
from millrace.config.topic import TopicConfig
from millrace.errors import InvalidConfigError


@pytest.fixture
def place(tmp_path):
    (tmp_path / "client.properties").write_text("# ours\nname=from-file\nwait=1234\n")
    (tmp_path / "name").write_text("from-directory\n")
    return tmp_path


def test_references_are_resolved_where_a_client_is_made(place, monkeypatch):
    monkeypatch.setenv("CLIENT_NAME", "from-environment")
    given = {
        "${env:CLIENT_NAME}": "from-environment",
        f"${{file:{place}/client.properties:name}}": "from-file",
        f"a-${{directory:{place}:name}}-${{env:CLIENT_NAME}}": "a-from-directory-from-environment",
        "${spark:x} $ENV ${}": "${spark:x} $ENV ${}",
    }
    for reference, value in given.items():
        assert ClientConfig.load({"client.id": reference}).client_id == value
    config = {"request.timeout.ms": f"${{file:{place}/client.properties:wait}}", "delivery.timeout.ms": 5000}
    assert ProducerConfig.of(config).request_timeout_ms == 1234


@pytest.mark.parametrize(
    "reference",
    [
        "${env:NO_SUCH_VARIABLE}",
        "${file:PLACE/none.properties:name}",
        "${file:PLACE/client.properties:none}",
        "${file:PLACE/name:name}",
        "${file:name}",
        "${directory:PLACE:none}",
        "${directory:PLACE:../name}",
        "${directory:PLACE:..}",
        "${directory:name}",
    ],
)
def test_an_unresolvable_reference_is_named_without_content_of_files(place, reference):
    reference = reference.replace("PLACE", str(place))
    with pytest.raises(InvalidConfigError, match="cannot be resolved") as raised:
        ClientConfig.load({"client.id": reference})
    assert raised.value.message.startswith(f"client.id={reference} ")
    assert "from-directory" not in raised.value.message


def test_a_wrong_value_is_shown_as_it_was_given(place):
    reference = f"${{file:{place}/client.properties:name}}"
    with pytest.raises(InvalidConfigError) as raised:
        ClientConfig.load({"request.timeout.ms": reference})
    assert reference in raised.value.message
    assert "from-file" not in raised.value.message


def test_references_in_requests_of_clients_are_never_resolved(monkeypatch):
    monkeypatch.setenv("CLEANUP", "delete")
    with pytest.raises(InvalidConfigError, match=r"\$\{env:CLEANUP\}"):
        TopicConfig.load({"cleanup.policy": "${env:CLEANUP}"})


@pytest.mark.parametrize(
    "name",
    [
        *("sasl.jaas.config", "ssl.key.password", "ssl.keystore.key", "ssl.Truststore.Password", "my.credentials"),
        *("fs.s3a.access.key", "fs.s3a.secret.key", "sasl.oauthbearer.token.endpoint.url"),
    ],
)
def test_values_of_secret_names_are_hidden(name):
    assert shown(name, "hunter2") == "(hidden)"


def test_values_that_contain_a_secret_are_hidden_and_others_are_shown():
    assert shown("client.id", 'x required password="hunter2";') == "(hidden)"
    assert shown("key.deserializer", "bytes") == "'bytes'"
    assert shown("batch.size", 7) == "7"
    assert shown("ssl.key.password", "${env:PASSWORD}") == "'${env:PASSWORD}'"
