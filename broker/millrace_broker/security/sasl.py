"""SASL of a listener (KIP-43, KIP-152, KIP-368).

Each connection has one conversation, in Kafka's protocol and in gRPC. Kafka's classes are ``SaslServerAuthenticator``,
``PlainServerCallbackHandler``, ``ScramSaslServer`` and ``OAuthBearerSaslServer``.

Invariants

- Before authentication, a connection may only ask for versions and authenticate.
- After a failure, a conversation accepts nothing, and its connection is closed.
- The answers to an unknown user and to a wrong password are the same, also in time. An unknown user therefore gets a
  challenge like those of known users.
- A later authentication of the same connection has the same principal. It uses the listener's present options.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from millrace.config.kerberos_rules import KerberosRule
from millrace.config.oauth_options import TOKEN_BYTES_MAX
from millrace.config.security_options import ListenerSecurity, SaslMechanism
from millrace.errors import IllegalSaslStateError, SaslAuthenticationError, UnsupportedSaslMechanismError
from millrace.security.kerberos import KerberosServer
from millrace.security.scram import ITERATIONS_MIN, ScramCredential, ScramServer, plain_name
from millrace_broker.security.delegation_tokens import TokenLogin
from millrace_broker.security.principal import USER, KafkaPrincipal

if TYPE_CHECKING:
    from millrace_broker.security.tokens import TokenValidator

_FAILURE_DELAY_S: Final = 0.1
"""Wait before a refusal, as Kafka's ``connection.failed.authentication.delay.ms``, which slows guesses down."""
_BEARER: Final = re.compile(
    rb"n,(?:a=(?P<authorization_id>[^,\x01]*))?,\x01(?:(?!auth=)[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)*"
    rb"auth=(?i:bearer) +(?P<token>[A-Za-z0-9_.\-]+)\x01(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)*\x01"
)
"""A client's message of OAUTHBEARER, whose extensions (KIP-342) nothing reads.

The first ``auth`` has the token. The event loop matches messages of unknown clients, so the match must take linear
time.
"""
_SECRET: Final = secrets.token_bytes(32)
"""Key of the salts for unknown users while no user has a credential."""

_SALT_BYTES: Final = 32
_ALPHANUMERIC: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"

ScramLookup = Callable[[str, str], ScramCredential | None]
"""Credential of a user for a mechanism; None if there is none."""


TokenLookup = Callable[[str, str], TokenLogin | None]
"""Credential of a delegation token for a mechanism; None if there is none."""


class Logins(NamedTuple):
    """Look-ups of a broker's SCRAM credentials."""

    users: ScramLookup
    tokens: TokenLookup
    models: ScramLookup
    """Credential of some user, the same at all brokers. The challenge for an unknown user is like that user's."""


class SaslAccess(NamedTuple):
    """Options of a listener, and its validation of tokens."""

    options: ListenerSecurity
    validator: TokenValidator | None
    max_reauth_ms: Mapping[str, int] = {}
    """``connections.max.reauth.ms`` of mechanisms that have a value of their own."""


class SaslToken(NamedTuple):
    """Answer to a message of a client."""

    message: bytes
    lifetime_ms: int = 0
    """Time after which the client has to authenticate again; 0: never, or not yet authenticated."""


class _Mechanism(Protocol):
    """Server side of one exchange of a mechanism."""

    username: str
    """User whom the client names, empty if there is no such user. The client is that user after the exchange alone."""
    expires_s: float
    """End of the validity of what the client has shown, in seconds since the epoch."""
    is_token: bool
    """True if the client has shown a delegation token."""

    async def evaluate(self, token: bytes) -> tuple[bytes, bool]:
        """Return the answer to a message, and whether the client is authenticated.

        Raises ``SaslAuthenticationError``.
        """
        ...


class _Plain:
    """PLAIN (RFC 4616), in which the client sends its password."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords: Final = passwords
        self.username = ""
        self.expires_s = float("inf")
        self.is_token = False

    async def evaluate(self, token: bytes) -> tuple[bytes, bool]:
        parts = token.split(b"\0")
        if len(parts) != 3 or not (parts[1] and parts[2]):
            raise SaslAuthenticationError("the client's PLAIN message has no user and password")
        authorization_id, username, password = (part.decode("utf-8", "replace") for part in parts)
        expected = self._passwords.get(username)
        self.username = "" if expected is None else username
        is_same = hmac.compare_digest((expected or secrets.token_hex()).encode(), password.encode())
        if expected is None or not is_same:
            raise SaslAuthenticationError("invalid credentials")
        if authorization_id not in ("", username):
            raise SaslAuthenticationError("PLAIN for another authorization id than the user's is not supported")
        return b"", True


class _Scram:
    """SCRAM (RFC 5802), also for delegation tokens (KIP-48).

    The client proves that it knows its password, or the HMAC of a token.
    """

    def __init__(self, mechanism: str, logins: Logins) -> None:
        self._logins: Final = logins
        self._mechanism: Final = mechanism
        self._server: ScramServer | None = None
        self._is_known = False
        self.username = ""
        self.expires_s = float("inf")
        self.is_token = False

    async def evaluate(self, token: bytes) -> tuple[bytes, bool]:
        if self._server is None:
            self._server = ScramServer(self._mechanism, token)
            name, credential, model = self._server.username, None, None
            if self._server.wants_token:
                login = self._logins.tokens(name, self._mechanism)
                if login is not None:
                    credential, self.username, self.expires_s = login
                self.is_token = True
            else:
                credential = self._logins.users(name, self._mechanism)
                model = self._logins.models(name, self._mechanism)
                self.username = "" if credential is None else name
            self._is_known = credential is not None
            return self._server.challenge(credential or _credential_of_nobody(self._mechanism, name, model)), False
        answer = self._server.final(token)
        if not self._is_known:
            raise SaslAuthenticationError("invalid credentials")
        return answer, True


class _Gssapi:
    """GSSAPI (RFC 4752), in which the client shows a Kerberos ticket."""

    def __init__(self, jaas: Mapping[str, str], rules: Sequence[KerberosRule]) -> None:
        self._jaas: Final = jaas
        self._rules: Final = rules
        self._server: KerberosServer | None = None
        self.username = ""
        self.expires_s = float("inf")
        self.is_token = False

    async def evaluate(self, token: bytes) -> tuple[bytes, bool]:
        return await asyncio.get_running_loop().run_in_executor(None, self._evaluate, token)

    def _evaluate(self, token: bytes) -> tuple[bytes, bool]:
        if self._server is None:
            self._server = KerberosServer(self._jaas, self._rules)
        answer, is_complete = self._server.evaluate(token)
        self.username = self._server.username
        return answer, is_complete


class _OAuthBearer:
    """OAUTHBEARER (RFC 7628).

    The client sends a token that a provider has signed. A refused client gets the reason at once, and not after another
    message, as in RFC 7628.
    """

    def __init__(self, validator: TokenValidator) -> None:
        self._validator: Final = validator
        self.username = ""
        self.expires_s = float("inf")
        self.is_token = False

    async def evaluate(self, token: bytes) -> tuple[bytes, bool]:
        if len(token) > TOKEN_BYTES_MAX:
            raise SaslAuthenticationError(f"the client's token has more than {TOKEN_BYTES_MAX} bytes")
        found = _BEARER.fullmatch(token)
        if found is None:
            raise SaslAuthenticationError("the client's OAUTHBEARER message is malformed")
        valid = await self._validator.validate(found["token"].decode("ascii"))
        authorization_id = plain_name((found["authorization_id"] or b"").decode("utf-8", "replace"))
        if authorization_id not in ("", valid.principal_name):
            raise SaslAuthenticationError("OAUTHBEARER for another authorization id than the token's is not supported")
        self.username, self.expires_s = valid
        return b"", True


def _credential_of_nobody(mechanism: str, username: str, model: ScramCredential | None) -> ScramCredential:
    """Return a credential that no password has. A user has the same one at each time and at each broker.

    The salt and the iterations are like those of ``model``, because they differ between the tools that make
    credentials.
    """
    key, like, iterations = _SECRET, bytes(_SALT_BYTES), ITERATIONS_MIN
    if model is not None:
        key, like, iterations = model.server_key, model.salt, model.iterations
    salt = hashlib.shake_256(hmac.digest(key, username.encode(), "sha256")).digest(len(like))
    if like.isalnum():  # as Kafka's tools make them
        salt = bytes(_ALPHANUMERIC[each % len(_ALPHANUMERIC)] for each in salt)
    return ScramCredential.of_salted_password(mechanism, secrets.token_bytes(32), salt, iterations)


class SaslConversation:
    """SASL of one connection, in the event loop."""

    def __init__(
        self,
        access: Callable[[], SaslAccess],
        logins: Logins,
        monotonic: Callable[[], float],
    ) -> None:
        """``access`` returns the listener's present options, because they may change while the connection is open."""
        self._access: Final = access
        self._logins: Final = logins
        self._monotonic: Final = monotonic
        self._began: Final = monotonic()
        self._exchange: _Mechanism | None = None
        self._mechanism = ""
        self._expires = float("inf")
        self.principal: KafkaPrincipal | None = None
        """The authenticated principal; None before."""
        self.is_token = False
        """True if the client has authenticated with a delegation token."""
        self.has_failed = False
        """True if the connection has to be closed."""
        self.refused_user = ""
        """User whom the client failed to be, empty without a failure and if there is no such user."""

    @property
    def mechanisms(self) -> Collection[SaslMechanism]:
        """The listener's mechanisms."""
        return self._access().options.mechanisms

    def check(self) -> None:
        """Raise ``SaslAuthenticationError`` if the connection may make no call of others than SASL."""
        if self.principal is None or self.has_failed:
            raise SaslAuthenticationError(
                "this listener wants SASL first: set security.protocol=SASL_SSL (or SASL_PLAINTEXT), and the user"
            )
        if self._monotonic() > self._expires:
            raise SaslAuthenticationError(
                "the connection has not authenticated again in time: within connections.max.reauth.ms, and before its "
                "token expires"
            )

    def is_too_slow(self, limit_s: float) -> bool:
        """Return whether the connection is not authenticated after ``limit_s`` seconds."""
        return self.principal is None and self._monotonic() - self._began > limit_s

    def begin(self, mechanism: str) -> None:
        """Begin an exchange.

        Raises ``UnsupportedSaslMechanismError``, and ``IllegalSaslStateError`` during another exchange.
        """
        if self._exchange is not None or self.has_failed:
            self.has_failed = True
            raise IllegalSaslStateError("SaslHandshake came during an exchange of SASL")
        options, validator, _ = self._access()
        if mechanism not in options.mechanisms:
            self.has_failed = True
            raise UnsupportedSaslMechanismError(
                f"sasl.mechanism={mechanism} is not enabled here: the client may use {', '.join(options.mechanisms)}"
            )
        self._mechanism = mechanism
        if mechanism == SaslMechanism.PLAIN:
            self._exchange = _Plain(options.users)
        elif mechanism == SaslMechanism.OAUTHBEARER:
            assert validator is not None, "a listener with OAUTHBEARER has one"
            self._exchange = _OAuthBearer(validator)
        elif mechanism == SaslMechanism.GSSAPI:
            self._exchange = _Gssapi(options.login, options.kerberos_rules)
        else:
            self._exchange = _Scram(mechanism, self._logins)

    async def authenticate(self, token: bytes) -> SaslToken:
        """Take a message of the client. Raises ``SaslAuthenticationError`` after a pause, ``IllegalSaslStateError``."""
        exchange = self._exchange
        if exchange is None or self.has_failed:
            self.has_failed = True
            raise IllegalSaslStateError("SaslAuthenticate came without SaslHandshake")
        try:
            answer, is_complete = await exchange.evaluate(token)
            if not is_complete:
                return SaslToken(answer)
            principal = KafkaPrincipal(USER, exchange.username)
            if self.principal not in (None, principal):
                raise SaslAuthenticationError(f"the connection of {self.principal} cannot become that of {principal}")
        except SaslAuthenticationError as error:
            self.has_failed, self.refused_user = True, exchange.username
            await asyncio.sleep(_FAILURE_DELAY_S)
            raise SaslAuthenticationError(f"authentication failed: {error.message}") from None
        self._exchange = None
        self.principal, self.is_token = principal, exchange.is_token
        options, _, max_reauth_ms = self._access()
        lifetime_ms = max_reauth_ms.get(self._mechanism, options.connections_max_reauth_ms)
        if exchange.expires_s < float("inf"):
            left_ms = max(int((exchange.expires_s - time.time()) * 1000), 1)
            lifetime_ms = min(lifetime_ms or left_ms, left_ms)
        self._expires = self._monotonic() + (lifetime_ms / 1000 if lifetime_ms else float("inf"))
        return SaslToken(answer, lifetime_ms)
