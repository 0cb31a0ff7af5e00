"""Options of the SASL mechanism OAUTHBEARER (KIP-768, KIP-1139).

They are for the login of clients and for the validation by listeners. Names, meanings and defaults are Kafka's
(``SaslConfigs``), except where a description says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field

from millrace.config.base import Config
from millrace.config.integers import Int32, PositiveInt32
from millrace.config.loopback import LOOPBACK_HOSTS

TOKEN_BYTES_MAX: Final = 64 * 1024
"""Largest token that clients send and listeners read."""
_FILE: Final = "file"


def is_file_url(url: str) -> bool:
    """Return whether a URL names a file of this machine."""
    return urlsplit(url).scheme == _FILE


def file_of(url: str) -> str:
    """Return the path of a file URL."""
    return unquote(urlsplit(url).path)


def _check_url(value: str) -> str:
    if not value:
        return value
    parts = urlsplit(value)
    if parts.scheme == _FILE and parts.path and not parts.netloc:
        return value
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected a URL with https, such as https://login.example/token, or file:///path")
    if parts.username or parts.password:
        raise ValueError("a URL has no user and no password: set the client's id and secret as options")
    return value


EndpointUrl = Annotated[str, AfterValidator(_check_url)]


def check_encryption(option: str, url: str) -> None:
    """Raise ``ValueError`` for a URL without encryption beyond loopback, from where anybody could forge keys."""
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS:
        raise ValueError(
            f"{option} has http without encryption, at a host that is not loopback, for connections that are "
            "encrypted: use https"
        )


class OAuthValidation(Config):
    """Options of a listener that validates the tokens of an OpenID provider.

    The tokens are JSON Web Tokens.
    """

    sasl_oauthbearer_jwks_endpoint_url: EndpointUrl = Field(
        "",
        description="URL of the provider's keys (JSON Web Key Set), with https or file. OAUTHBEARER needs it.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: PositiveInt32 = Field(
        3_600_000,
        description="Age at which the broker fetches the provider's keys again. A token with an unknown key makes the "
        "broker fetch them at once, at most every ten seconds.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Int32 = Field(
        100, description="Wait before the broker fetches the provider's keys after a failure. It doubles each time."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: Int32 = Field(
        10_000, description="Longest wait before the broker fetches the provider's keys after a failure."
    )
    sasl_oauthbearer_expected_audience: str = Field(
        "",
        description="Audiences, with commas, of which a token must have one (aud). Without it, tokens that have an "
        "audience are refused, because they are for another service.",
    )
    sasl_oauthbearer_expected_issuer: str = Field(
        "", description="Issuer that tokens must have (iss). The default is any issuer."
    )
    sasl_oauthbearer_clock_skew_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        30, description="Largest difference between the clocks of broker and provider, in seconds."
    )
    sasl_oauthbearer_scope_claim_name: str = Field("scope", description="Claim with the scopes of a token.")
    sasl_oauthbearer_sub_claim_name: str = Field("sub", description="Claim with the name of the principal.")

    @property
    def oauth_audiences(self) -> list[str]:
        """The expected audiences."""
        return [each.strip() for each in self.sasl_oauthbearer_expected_audience.split(",") if each.strip()]


class OAuthClient(Config):
    """Options of a client that gets its tokens from an OpenID provider.

    The client uses the client credentials flow.
    """

    sasl_oauthbearer_token_endpoint_url: EndpointUrl = Field(
        "",
        description="URL at which the client gets its tokens for OAUTHBEARER, with https. With file, the file has the "
        "token.",
    )
    sasl_oauthbearer_client_credentials_client_id: str = Field(
        "", description="Id of the client at the provider. In sasl.jaas.config: clientId."
    )
    sasl_oauthbearer_client_credentials_client_secret: str = Field(
        "", repr=False, description="Secret of the client at the provider. In sasl.jaas.config: clientSecret."
    )
    sasl_oauthbearer_scope: str = Field(
        "", description="Scopes that the client asks for. In sasl.jaas.config: scope. The default is the provider's."
    )
    sasl_oauthbearer_header_urlencode: bool = Field(
        False, description="Whether id and secret are URL-encoded before Base64, as RFC 6749 has it."
    )
    sasl_login_connect_timeout_ms: PositiveInt32 = Field(
        10_000, description="Longest time without an answer of the provider. Kafka has no default."
    )
    sasl_login_retry_backoff_ms: Int32 = Field(
        100, description="Wait before the client asks the provider again after a failure. It doubles each time."
    )
    sasl_login_retry_backoff_max_ms: Int32 = Field(
        10_000, description="Longest wait before the client asks the provider again after a failure."
    )
    sasl_login_refresh_window_factor: Annotated[float, Field(ge=0.5, le=1)] = Field(
        0.8, description="Part of a token's lifetime after which new connections get another token."
    )

    def oauth_login(self, jaas: Mapping[str, str]) -> tuple[str, str, str]:
        """Return id, secret and scope. The options come before those of the login module."""
        return (
            self.sasl_oauthbearer_client_credentials_client_id or jaas.get("clientId", ""),
            self.sasl_oauthbearer_client_credentials_client_secret or jaas.get("clientSecret", ""),
            self.sasl_oauthbearer_scope or jaas.get("scope", ""),
        )

    def check_oauth_login(self, jaas: Mapping[str, str], *, is_encrypted: bool) -> None:
        """Raise ``ValueError`` unless the options are enough for tokens."""
        url = self.sasl_oauthbearer_token_endpoint_url
        if not url:
            raise ValueError("sasl.mechanism=OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url")
        if is_file_url(url):
            return
        client_id, secret, _ = self.oauth_login(jaas)
        if not (client_id and secret):
            raise ValueError(
                "sasl.mechanism=OAUTHBEARER needs a client of the provider: set "
                "sasl.oauthbearer.client.credentials.client.id and sasl.oauthbearer.client.credentials.client.secret"
            )
        if is_encrypted:
            check_encryption("sasl.oauthbearer.token.endpoint.url", url)
