"""Tokens of an OAUTHBEARER client (RFC 6749 section 4.4, KIP-768).

An OpenID provider issues them. Kafka's classes are ``ExpiringCredentialRefreshingLogin``,
``ClientCredentialsJwtRetriever`` and ``FileJwtRetriever``.

Invariants

- One thread at a time asks the provider. After a failure, nobody asks before the back-off has passed.
- A token is used until it expires, if the provider cannot be reached meanwhile.
- No token and no secret is in a message.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from millrace.config.oauth_options import TOKEN_BYTES_MAX, OAuthClient, is_file_url
from millrace.errors import SaslAuthenticationError
from millrace.security.endpoints import Backoff, provider_tls, read_document

_OPTIONS: Final = (
    "sasl.oauthbearer.token.endpoint.url, sasl.oauthbearer.client.credentials.client.id and "
    "sasl.oauthbearer.client.credentials.client.secret"
)
_SHORT_LIFETIME_S: Final = 10.0
"""Lifetime of a token in a file, which is read again after it, and of a token whose provider names none."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token and its lifetime, in seconds of the monotonic clock."""

    text: str = field(repr=False)
    renewed_s: float
    """Time from which new connections get another token."""
    expires_s: float


class OAuthLogin:
    """Tokens of one client. Thread safe."""

    def __init__(
        self, options: OAuthClient, jaas: dict[str, str], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; no provider is asked yet. Raises ``InvalidConfigError`` if a trust store cannot be used."""
        self._options: Final = options
        self._url: Final = options.sasl_oauthbearer_token_endpoint_url
        self._login: Final = options.oauth_login(jaas)
        self._tls: Final = provider_tls(jaas)
        self._monotonic: Final = monotonic
        self._lock: Final = threading.Lock()
        self._backoff: Final = Backoff(options.sasl_login_retry_backoff_ms, options.sasl_login_retry_backoff_max_ms)
        self._token: Token | None = None
        self._failure: OSError | None = None

    def token(self) -> str:
        """Return a valid token. It blocks while the provider is asked.

        Raises ``SaslAuthenticationError`` if the provider refuses the client, ``OSError`` if it does not answer.
        """
        with self._lock:
            now_s = self._monotonic()
            if self._token is None or now_s >= self._token.renewed_s:
                self._renew(now_s)
            token = self._token
            if token is None or self._monotonic() >= token.expires_s:
                assert self._failure is not None
                raise ConnectionError(str(self._failure))
            return token.text

    def _renew(self, now_s: float) -> None:
        if not self._backoff.is_due(now_s):
            return
        try:
            self._token = self._fetched()
            self._backoff.succeeded()
        except OSError as error:
            self._failure = error
            self._backoff.failed(self._monotonic())

    def _fetched(self) -> Token:
        """Return a new token. Raises ``SaslAuthenticationError`` and ``OSError``."""
        timeout_s = self._options.sasl_login_connect_timeout_ms / 1000
        asked_s = self._monotonic()
        if is_file_url(self._url):
            file = read_document(self._url, self._tls.current(), timeout_s, options=_OPTIONS)
            text = file.decode("ascii", "replace").strip()
            lifetime_s = _SHORT_LIFETIME_S
        else:
            tls, request = self._tls.current(), self._request()
            text, lifetime_s = self._answer(read_document(self._url, tls, timeout_s, options=_OPTIONS, **request))
        if not text.isascii() or any(each.isspace() or not each.isprintable() for each in text):
            raise SaslAuthenticationError(f"{self._url} gives a token that is none: it has characters that none has")
        if len(text) > TOKEN_BYTES_MAX:
            raise SaslAuthenticationError(f"{self._url} gives a token of more than {TOKEN_BYTES_MAX} bytes")
        renewed_s = asked_s + lifetime_s * self._options.sasl_login_refresh_window_factor
        return Token(text, renewed_s, asked_s + lifetime_s)

    def _request(self) -> dict[str, Any]:
        client_id, secret, scope = self._login
        if self._options.sasl_oauthbearer_header_urlencode:
            client_id, secret = quote(client_id, safe=""), quote(secret, safe="")
        form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        headers = {
            "Accept": "application/json",
            "Authorization": "Basic " + base64.b64encode(f"{client_id}:{secret}".encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        return {"body": urlencode(form).encode(), "headers": headers}

    def _answer(self, document: bytes) -> tuple[str, float]:
        """Return token and lifetime in seconds. Raises ``SaslAuthenticationError``."""
        try:
            answer = json.loads(document)
            text, lifetime_s = answer["access_token"], float(answer.get("expires_in") or _SHORT_LIFETIME_S)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            text, lifetime_s = "", 0.0
        if not (isinstance(text, str) and text and lifetime_s > 0):
            raise SaslAuthenticationError(
                f"{self._url} gives no access_token: is it the token endpoint of the provider?"
            )
        return text, lifetime_s
