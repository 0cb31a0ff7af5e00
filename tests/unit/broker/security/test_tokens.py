"""Tests of the validation of OAUTHBEARER's tokens.

The tests cover signatures, algorithms, claims, and the provider's keys.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from millrace.config.oauth_options import OAuthValidation
from millrace.errors import InvalidConfigError, SaslAuthenticationError
from millrace_broker.security.tokens import ProviderKeys, TokenValidator, ValidToken

from ....oidc_provider import AUDIENCE, ISSUER, Provider, running


@pytest.fixture(scope="module")
def shared() -> Iterator[Provider]:
    with running() as provider:
        yield provider


@pytest.fixture
def provider(shared: Provider) -> Iterator[Provider]:
    yield shared
    shared.status = 200


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    async def pause(self, seconds: float) -> None:
        self.now_s += seconds


def options(provider: Provider, **changed: Any) -> OAuthValidation:
    return OAuthValidation.load(
        {
            "sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/jwks",
            "sasl.oauthbearer.expected.audience": f"other, {AUDIENCE}",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            **{f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in changed.items()},
        }
    )


def validate(provider: Provider, token: str, **changed: Any) -> ValidToken:
    given = options(provider, **changed)
    return asyncio.run(TokenValidator(given, ProviderKeys(given, {}, time.monotonic)).validate(token))


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_a_token_has_its_principal_and_its_end(provider: Provider) -> None:
    found = validate(provider, provider.token(exp=5_000_000_000))
    assert found == ValidToken("orders", 5_000_000_030.0)


@pytest.mark.parametrize("kind", ["RSA", "EC"])
def test_a_key_verifies_the_algorithms_of_its_kind(provider: Provider, kind: str) -> None:
    provider.rotate(kind)
    algorithms = ("RS256", "RS512", "PS384") if kind == "RSA" else ("ES256",)
    for algorithm in algorithms:
        assert validate(provider, provider.token(header={"alg": algorithm})).principal_name == "orders"
    assert validate(provider, provider.token(header={"kid": None})).principal_name == "orders"
    provider.rotate()


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": 1}, r"it has expired \(exp\)"),
        ({"exp": None}, "it has no time exp"),
        ({"exp": "tomorrow"}, "it has no time exp"),
        ({"exp": 1e300}, "it has no time exp"),
        ({"exp": True}, "it has no time exp"),
        ({"iat": None}, "it has no time iat"),
        ({"iat": 5_000_000_000}, r"not valid yet \(iat\)"),
        ({"nbf": 5_000_000_000}, r"not valid yet \(nbf\)"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "payments"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": ["a", 1]}, "neither a text nor a list"),
        ({"sub": None}, r"no principal of printable characters \(sub\)"),
        ({"sub": " "}, r"no principal of printable characters \(sub\)"),
        ({"sub": "a\nb"}, r"no principal of printable characters \(sub\)"),
        ({"sub": ["a"]}, r"no principal of printable characters \(sub\)"),
        ({"scope": 7}, "its claim scope"),
    ],
)
def test_a_token_with_a_wrong_claim_is_refused_by_its_name(
    provider: Provider, claims: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SaslAuthenticationError, match=problem):
        validate(provider, provider.token(**claims))


def test_the_difference_of_the_clocks_is_allowed(provider: Provider) -> None:
    token = provider.token(exp=int(time.time()) - 20, iat=int(time.time()) - 40)
    assert validate(provider, token).principal_name == "orders"
    with pytest.raises(SaslAuthenticationError, match="expired"):
        validate(provider, token, clock_skew_seconds=5)


def test_claims_have_the_configured_names(provider: Provider) -> None:
    token = provider.token(azp="payments", sub=None, scp=["a"])
    assert validate(provider, token, sub_claim_name="azp", scope_claim_name="scp").principal_name == "payments"


def test_a_token_with_an_audience_is_refused_if_none_is_expected(provider: Provider) -> None:
    with pytest.raises(SaslAuthenticationError, match=r"sasl\.oauthbearer\.expected\.audience"):
        validate(provider, provider.token(), expected_audience="")
    assert validate(provider, provider.token(aud=None), expected_audience="").principal_name == "orders"


def test_no_algorithm_is_taken_for_another(provider: Provider) -> None:
    """Check the attacks of RFC 8725, ``none`` and the public key as the secret of an HMAC."""
    key = provider.keys[0]
    payload = provider.token().split(".")[1]
    pem = key.as_pem(private=False)  # type: ignore[attr-defined]
    confused = f"{_part({'alg': 'HS256', 'kid': key.kid})}.{payload}"
    signature = hmac.digest(pem, confused.encode(), "sha256")
    for token in (
        f"{_part({'alg': 'none'})}.{payload}.",
        f"{_part({'alg': 'None', 'kid': key.kid})}.{payload}.",
        f"{confused}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}",
        jwt.encode({"alg": "HS256", "kid": key.kid}, {"sub": "a"}, OctKey.generate_key()),
    ):
        with pytest.raises(SaslAuthenticationError, match=r"its algorithm \(alg\) is none with a public key"):
            validate(provider, token)
    own = provider.token().split(".")
    for token in (
        f"{_part({'alg': 'ES256', 'kid': key.kid})}.{payload}.{own[2]}",
        provider.token(header={"kid": "../../x"}),
    ):
        with pytest.raises(SaslAuthenticationError, match="has no key for it"):
            validate(provider, token)


def test_a_key_in_the_header_of_a_token_is_not_trusted(provider: Provider) -> None:
    forged = Provider()
    key = forged.keys[0]
    public = key.as_dict(private=False)
    token = forged.token(header={"kid": provider.keys[0].kid, "jwk": public})
    with pytest.raises(SaslAuthenticationError, match="signature"):
        validate(provider, token)


@pytest.mark.parametrize("token", ["", "a.b.c", "...", "e30.e30.", f"{'A' * 60_000}.e30.e30", "eyJhbGciOjF9.e30.e30"])
def test_a_malformed_token_is_refused_and_not_shown(provider: Provider, token: str) -> None:
    with pytest.raises(SaslAuthenticationError, match="the token is refused") as raised:
        validate(provider, token)
    assert len(str(raised.value)) < 200


def test_a_changed_token_is_refused(provider: Provider) -> None:
    head, _, signature = provider.token().split(".")
    with pytest.raises(SaslAuthenticationError, match="its signature or its form is wrong"):
        validate(provider, f"{head}.{_part({'sub': 'admin'})}.{signature}")


def test_keys_are_cached_fetched_again_and_rotated(provider: Provider) -> None:
    clock, given = Clock(), options(provider, jwks_endpoint_refresh_ms=60_000)
    provider.asked["/jwks"] = 0

    async def run() -> None:
        keys = ProviderKeys(given, {}, clock, clock.pause)
        validator = TokenValidator(given, keys)
        await asyncio.gather(*(validator.validate(provider.token()) for _ in range(5)))
        await validator.validate(provider.token())
        assert provider.asked["/jwks"] == 1, "one fetch for all"
        old = provider.token()
        provider.rotate()
        before_s = clock.now_s
        assert (await validator.validate(provider.token())).principal_name == "orders"
        assert clock.now_s == before_s + 1, "a token of a new key waits for the next fetch"
        assert provider.asked["/jwks"] == 2
        refusals = await asyncio.gather(*(validator.validate(old) for _ in range(5)), return_exceptions=True)
        assert {str(each) for each in refusals} == {
            "the token is refused: the provider of this listener has no key for it (kid and alg)"
        }
        assert provider.asked["/jwks"] == 3, "one fetch for all unknown keys of a second"
        clock.now_s += 60
        await validator.validate(provider.token())
        assert keys._fetch is not None, "the keys are fetched while the earlier ones are used"
        await keys._fetch
        assert provider.asked["/jwks"] == 4

    asyncio.run(run())


def test_a_provider_that_does_not_answer_is_asked_with_back_off(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    clock, given = Clock(), options(provider)
    provider.asked["/jwks"], provider.status = 0, 503

    async def run() -> None:
        keys = ProviderKeys(given, {}, clock)
        validator, token = TokenValidator(given, keys), provider.token()
        for at_s, asked in ((0, 1), (0.05, 1), (0.1, 2), (0.2, 2), (0.31, 3)):
            clock.now_s = 1000.0 + at_s
            with pytest.raises(SaslAuthenticationError, match="answers with HTTP status 503"):
                await validator.validate(token)
            assert provider.asked["/jwks"] == asked
        provider.status = 200
        clock.now_s += 10
        assert (await validator.validate(token)).principal_name == "orders"
        provider.status = 500
        clock.now_s += 4000
        assert (await validator.validate(token)).principal_name == "orders", "the keys stay"
        assert keys._fetch is not None
        await keys._fetch
        assert (await validator.validate(token)).principal_name == "orders"

    asyncio.run(run())
    assert "could not be fetched" in caplog.text


def test_a_redirection_is_not_followed(provider: Provider) -> None:
    provider.status = 302
    with pytest.raises(SaslAuthenticationError, match="answers with HTTP status 302"):
        validate(provider, provider.token())


def test_keys_in_a_file_are_read_at_the_start(provider: Provider, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    given = {"jwks_endpoint_url": f"file://{path}"}
    with pytest.raises(InvalidConfigError, match=r"jwks\.endpoint\.url=file:.*No such file"):
        validate(provider, provider.token(), **given)
    for content in ("{", "[]", '{"keys": {}}', '{"keys": [{"kty": "oct", "k": "AA"}]}'):
        path.write_text(content)
        with pytest.raises(InvalidConfigError, match=r"has no JSON Web Key Set|has no public key"):
            validate(provider, provider.token(), **given)
    bad = [{"kty": "RSA", "n": "!", "e": 7}, {"kty": ["RSA"]}, 7, {**provider.jwks()["keys"][0], "use": "enc"}]
    path.write_text(json.dumps({"keys": [*bad, *provider.jwks()["keys"]]}))
    assert validate(provider, provider.token(), **given).principal_name == "orders"
