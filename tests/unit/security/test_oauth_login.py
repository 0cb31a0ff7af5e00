"""Tests of tokens of clients.

Tokens come from a provider or from files. They are renewed before their end, and with back-off.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.config.client import ClientConfig
from millrace.errors import InvalidConfigError, SaslAuthenticationError
from millrace.security.oauth_login import OAuthLogin

from ...certificates import Authority
from ...oidc_provider import CLIENT_ID, SECRET, Provider, running

pytestmark = pytest.mark.usefixtures("finest_log")


@pytest.fixture(scope="module")
def shared() -> Iterator[Provider]:
    with running() as provider:
        yield provider


@pytest.fixture
def provider(shared: Provider) -> Iterator[Provider]:
    shared.asked["/token"] = 0
    yield shared
    shared.status, shared.lifetime_s, shared.clients = 200, 3600, {CLIENT_ID: SECRET}


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def config(provider: Provider, **changed: str) -> ClientConfig:
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token",
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        **{name.replace("_", "."): value for name, value in changed.items()},
    }
    return ClientConfig.load({name: value for name, value in options.items() if value})


def login(options: ClientConfig, clock: Clock) -> OAuthLogin:
    return OAuthLogin(options, options.login, clock)


def test_a_token_is_used_for_most_of_its_lifetime(provider: Provider) -> None:
    clock = Clock()
    found = login(config(provider, sasl_oauthbearer_scope="read write"), clock)
    first = found.token()
    assert provider.forms[-1] == {"grant_type": ["client_credentials"], "scope": ["read write"]}
    clock.now_s += 3600 * 0.79
    assert found.token() == first
    clock.now_s += 3600 * 0.02
    found.token()
    assert provider.asked["/token"] == 2


def test_a_token_outlives_a_provider_that_does_not_answer(provider: Provider) -> None:
    clock = Clock()
    found = login(config(provider), clock)
    first = found.token()
    provider.status = 503
    clock.now_s += 3000
    assert found.token() == first
    assert found.token() == first
    assert provider.asked["/token"] == 2, "the second connection falls into the back-off"
    clock.now_s += 700
    with pytest.raises(OSError, match="answers with HTTP status 503"):
        found.token()


def test_a_wrong_secret_fails_at_once_and_is_not_shown(provider: Provider) -> None:
    provider.clients = {}
    options = config(provider)
    with pytest.raises(
        SaslAuthenticationError, match=r"/token answers with HTTP status 401: check .*client\.secret"
    ) as raised:
        login(options, Clock()).token()
    assert SECRET not in str(raised.value) + repr(options) + str(options)


def test_the_login_module_has_id_secret_and_scope_too(provider: Provider) -> None:
    jaas = f'x.OAuthBearerLoginModule required clientId="{CLIENT_ID}" clientSecret="{SECRET}" scope="a";'
    options = config(
        provider,
        sasl_jaas_config=jaas,
        sasl_oauthbearer_client_credentials_client_id="",
        sasl_oauthbearer_client_credentials_client_secret="",
    )
    assert login(options, Clock()).token()
    assert provider.forms[-1]["scope"] == ["a"]


def test_id_and_secret_are_encoded_as_the_option_says(provider: Provider) -> None:
    provider.clients = {"a%3Ab": "c%20d"}
    options = config(
        provider,
        sasl_oauthbearer_client_credentials_client_id="a:b",
        sasl_oauthbearer_client_credentials_client_secret="c d",
        sasl_oauthbearer_header_urlencode="true",
    )
    assert login(options, Clock()).token()


def test_a_file_with_a_token_is_read_again(provider: Provider, tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "token"
    options = config(
        provider,
        sasl_oauthbearer_token_endpoint_url=f"file://{path}",
        sasl_oauthbearer_client_credentials_client_id="",
        sasl_oauthbearer_client_credentials_client_secret="",
    )
    found = login(options, clock)
    with pytest.raises(OSError, match="No such file"):
        found.token()
    for text in ("a.b.c", "d.e.f"):
        path.write_text(f"{text}\n")
        clock.now_s += 10
        assert found.token() == text
    for text, problem in (("two words", "characters"), ("x" * 70_000, "more than 65536 bytes")):
        path.write_text(text)
        clock.now_s += 10
        with pytest.raises(SaslAuthenticationError, match=problem):
            found.token()


def test_the_providers_certificate_is_of_an_authority_of_the_login_module(tmp_path: Path) -> None:
    authority = Authority.make()
    trusted = authority.write(tmp_path / "ca.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.issue("CN=login").write(tmp_path / "login.pem"))
    with running(tls) as provider:
        with pytest.raises(
            SaslAuthenticationError, match=r"certificate of https:.* is refused.*ssl\.truststore"
        ) as raised:
            login(config(provider), Clock()).token()
        assert SECRET not in str(raised.value)
        module = f'x.OAuthBearerLoginModule required ssl.truststore.location="{trusted}";'
        assert login(config(provider, sasl_jaas_config=module), Clock()).token()


def test_another_authority_of_the_provider_is_trusted_without_another_login(tmp_path: Path) -> None:
    authority = Authority.make()
    trusted = Authority.make("CN=another").write(tmp_path / "ca.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.issue("CN=login").write(tmp_path / "login.pem"))
    with running(tls) as provider:
        module = f'x.OAuthBearerLoginModule required ssl.truststore.location="{trusted}";'
        trusting = login(config(provider, sasl_jaas_config=module), Clock())
        with pytest.raises(SaslAuthenticationError, match="is refused"):
            trusting.token()
        authority.write(tmp_path / "ca.pem")
        assert trusting.token()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"sasl_oauthbearer_token_endpoint_url": ""}, "needs sasl.oauthbearer.token.endpoint.url"),
        ({"sasl_oauthbearer_client_credentials_client_secret": ""}, "needs a client of the provider: set"),
        ({"sasl_oauthbearer_token_endpoint_url": "ftp://a/b"}, "expected a URL with https"),
        ({"sasl_oauthbearer_token_endpoint_url": "https://u:p@a/b"}, "has no user and no password"),
        ({"sasl_oauthbearer_token_endpoint_url": "http://login.example/t"}, "use https"),
    ],
)
def test_options_that_are_not_enough_are_refused(provider: Provider, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidConfigError, match=problem) as raised:
        config(provider, **options)
    assert SECRET not in str(raised.value)
