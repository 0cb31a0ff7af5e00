"""Validation of OAUTHBEARER tokens that an OpenID provider signs (KIP-768).

The relevant standards are RFC 7515 to 7519 and RFC 8725. Kafka's classes are ``BrokerJwtValidator`` and
``RefreshingHttpsJwks``.

Invariants

- A token is valid only by a signature of one of the provider's public keys. ``none`` and algorithms with a shared
  secret are not among the algorithms, so that no public key is ever taken for a secret.
- The key's kind decides which algorithms it verifies. The token only chooses among those.
- Only the event loop changes the keys. One fetch runs at a time, in a thread. Failures are followed by a back-off.
- No token is in a message.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.config.oauth_options import OAuthValidation, is_file_url
from millrace.errors import InvalidConfigError, SaslAuthenticationError
from millrace.security.endpoints import Backoff, provider_tls, read_document
from millrace_broker.runtime.background_tasks import BackgroundTasks

if TYPE_CHECKING:
    from joserfc.jwk import Key

_logger: Final = logging.getLogger(__name__)

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS: Final[Mapping[tuple[str, str], Sequence[str]]] = {
    ("RSA", ""): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA", "Ed25519"),
}
"""Algorithms by kind and curve of the key. Shared secrets (``oct``) have none."""
_OPTION: Final = "sasl.oauthbearer.jwks.endpoint.url"
_TIMEOUT_S: Final = 10.0
_UNKNOWN_KEY_S: Final = 1.0
"""Shortest time between two fetches because of unknown keys, because any client can name such a key.

A token that comes earlier waits, because providers sign with a new key as soon as they publish it.
"""
_KEYS_MAX: Final = 1000
_HEADER_BYTES_MAX: Final = 4096


class ValidToken(NamedTuple):
    """A token that a listener accepts."""

    principal_name: str
    expires_s: float
    """End of its validity, with the allowed clock skew, in seconds since the epoch."""


class _PublicKey(NamedTuple):
    """A key of the provider, and the algorithms that it verifies."""

    key: Key
    key_id: str
    algorithms: Sequence[str]


class ProviderKeys:
    """Public keys of a provider (JSON Web Key Set), fetched and cached. In the event loop."""

    def __init__(
        self,
        options: OAuthValidation,
        jaas: Mapping[str, str],
        monotonic: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Read the keys if they are in a file. Others are fetched for the first token.

        Raises ``InvalidConfigError`` if the file or a trust store cannot be used.
        """
        self._url: Final = options.sasl_oauthbearer_jwks_endpoint_url
        self._refresh_s: Final = options.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._monotonic: Final = monotonic
        self._pause: Final = pause
        self._tls: Final = provider_tls(jaas)
        self._backoff: Final = Backoff(
            options.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
            options.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        )
        self._keys: Sequence[_PublicKey] = ()
        self._fetched_s = float("-inf")
        self._failure = "its keys have not been fetched yet"
        self._fetch: asyncio.Task[None] | None = None
        self._tasks: Final = BackgroundTasks()
        if is_file_url(self._url):
            try:
                self._take(self._read())
            except (OSError, SaslAuthenticationError) as error:
                raise InvalidConfigError(f"sasl.oauthbearer.jwks.endpoint.url={self._url}: {error}") from None

    async def find(self, algorithm: str, key_id: str) -> _PublicKey:
        """Return the key of a token. Fetch the keys if they have none. Raises ``SaslAuthenticationError``."""
        asked_s = self._monotonic()
        found = self._matching(algorithm, key_id)
        if found is not None:
            if asked_s - self._fetched_s >= self._refresh_s:
                self._begin()  # meanwhile, the keys that are there are used
            return found
        if (wait_s := self._fetched_s + _UNKNOWN_KEY_S - asked_s) > 0:
            await self._pause(wait_s)
        if self._fetched_s <= asked_s and (fetch := self._begin()) is not None:
            await asyncio.shield(fetch)
        found = self._matching(algorithm, key_id)
        if found is None and self._failure:
            raise SaslAuthenticationError(f"the broker has no keys of the provider to verify a token: {self._failure}")
        if found is None:
            raise SaslAuthenticationError(
                "the token is refused: the provider of this listener has no key for it (kid and alg)"
            )
        return found

    def _matching(self, algorithm: str, key_id: str) -> _PublicKey | None:
        fitting = [each for each in self._keys if algorithm in each.algorithms]
        if key_id:
            return next((each for each in fitting if each.key_id == key_id), None)
        return fitting[0] if len(fitting) == 1 else None  # a token without a key id needs no choice

    def _begin(self) -> asyncio.Task[None] | None:
        """Begin a fetch, or return the one in progress; None during a back-off."""
        if self._fetch is None and self._backoff.is_due(self._monotonic()):
            self._fetch = self._tasks.start(self._fetch_keys())
        return self._fetch

    async def _fetch_keys(self) -> None:
        try:
            self._take(await asyncio.get_running_loop().run_in_executor(None, self._read))
        except (OSError, SaslAuthenticationError) as error:
            self._failure = str(error)
            self._backoff.failed(self._monotonic())
            _logger.error("the keys of the provider for OAUTHBEARER could not be fetched: %s", error)
        finally:
            self._fetch = None

    def _read(self) -> Sequence[_PublicKey]:
        return _decoded(self._url, read_document(self._url, self._tls.current(), _TIMEOUT_S, options=_OPTION))

    def _take(self, keys: Sequence[_PublicKey]) -> None:
        self._keys, self._failure = keys, ""
        self._fetched_s = self._monotonic()
        self._backoff.succeeded()


def _decoded(url: str, document: bytes) -> Sequence[_PublicKey]:
    """Return the keys that verify signatures. Raises ``SaslAuthenticationError`` if the document has none."""
    from joserfc.errors import JoseError
    from joserfc.jwk import import_key

    try:
        entries = json.loads(document)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        entries = None
    if not isinstance(entries, list):
        raise SaslAuthenticationError(f"{url} has no JSON Web Key Set (an object with keys)")
    keys = []
    for entry in entries[:_KEYS_MAX]:
        algorithms = _algorithms(entry)
        if not algorithms:
            continue
        try:
            key = import_key({name: entry[name] for name in ("kty", "crv", "x", "y", "n", "e") if name in entry})
        except (JoseError, ValueError, TypeError, KeyError) as error:
            _logger.warning("a key of %s is left out, because it is malformed: %s", url, type(error).__name__)
            continue
        keys.append(_PublicKey(key, str(entry.get("kid", "")), algorithms))
    if not keys:
        raise SaslAuthenticationError(f"{url} has no public key that verifies signatures")
    return keys


def _algorithms(entry: Any) -> Sequence[str]:
    """Return the algorithms that a key verifies."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return ()
    kind, curve = entry.get("kty"), entry.get("crv", "")
    known = _ALGORITHMS.get((kind, curve), ()) if isinstance(kind, str) and isinstance(curve, str) else ()
    own = entry.get("alg")
    return known if own is None else tuple(each for each in known if each == own)


class TokenValidator:
    """Validation of a listener's tokens. In the event loop."""

    def __init__(
        self,
        options: OAuthValidation,
        keys: ProviderKeys,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._options: Final = options
        self._keys: Final = keys
        self._wall_clock: Final = wall_clock

    async def validate(self, token: str) -> ValidToken:
        """Return the principal of a token. Raises ``SaslAuthenticationError``, which names the claim."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        algorithm, key_id = _header(token)
        key = await self._keys.find(algorithm, key_id)
        try:
            claims = jwt.decode(token, key.key, algorithms=[algorithm]).claims
        except (JoseError, ValueError, TypeError, RecursionError):
            raise SaslAuthenticationError("the token is refused: its signature or its form is wrong") from None
        return self._checked(claims)

    def _checked(self, claims: Mapping[str, Any]) -> ValidToken:
        """Return the principal of claims. Raises ``SaslAuthenticationError``."""
        options, now_s = self._options, self._wall_clock()
        skew_s = options.sasl_oauthbearer_clock_skew_seconds
        expires_s = _seconds(claims, "exp")
        if now_s >= expires_s + skew_s:
            raise SaslAuthenticationError("the token is refused: it has expired (exp)")
        for claim in ("iat", "nbf") if "nbf" in claims else ("iat",):
            if _seconds(claims, claim) > now_s + skew_s:
                raise SaslAuthenticationError(f"the token is refused: it is not valid yet ({claim})")
        if options.sasl_oauthbearer_expected_issuer and claims.get("iss") != options.sasl_oauthbearer_expected_issuer:
            raise SaslAuthenticationError("the token is refused: it is of another issuer (iss) than expected.issuer")
        audiences = _texts(claims, "aud")
        if (audiences or options.oauth_audiences) and not set(audiences) & set(options.oauth_audiences):
            raise SaslAuthenticationError(
                "the token is refused: it is for another audience (aud) than the listener's "
                "sasl.oauthbearer.expected.audience"
            )
        _texts(claims, options.sasl_oauthbearer_scope_claim_name)
        name = claims.get(options.sasl_oauthbearer_sub_claim_name)
        if not (isinstance(name, str) and name.strip() and name.isprintable()):  # it is in logs and in the audit
            raise SaslAuthenticationError(
                f"the token is refused: it has no principal of printable characters "
                f"({options.sasl_oauthbearer_sub_claim_name})"
            )
        return ValidToken(name, expires_s + skew_s)


def _header(token: str) -> tuple[str, str]:
    """Return the algorithm and the key id of a token. Raises ``SaslAuthenticationError``."""
    text = token.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(text[:_HEADER_BYTES_MAX] + "=" * (-len(text) % 4)))
        algorithm, key_id = header["alg"], header.get("kid", "")
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SaslAuthenticationError("the token is refused: it is no signed JSON Web Token") from None
    if not (isinstance(algorithm, str) and isinstance(key_id, str)):
        raise SaslAuthenticationError("the token is refused: it is no signed JSON Web Token")
    if not any(algorithm in each for each in _ALGORITHMS.values()):
        raise SaslAuthenticationError(
            "the token is refused: its algorithm (alg) is none with a public key, such as RS256 or ES256"
        )
    return algorithm, key_id


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    """Return a time. Raises ``SaslAuthenticationError``."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise SaslAuthenticationError(f"the token is refused: it has no time {name}")
    return float(value)


def _texts(claims: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return a claim that is a text or several. Raises ``SaslAuthenticationError``."""
    value = claims.get(name, ())
    values = [value] if isinstance(value, str) else value
    if not (isinstance(values, list | tuple) and all(isinstance(each, str) for each in values)):
        raise SaslAuthenticationError(f"the token is refused: its claim {name} is neither a text nor a list of texts")
    return values
