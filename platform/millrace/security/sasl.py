"""Client side of SASL in Kafka's framing (KIP-43, KIP-152).

Kafka's class is ``SaslClientAuthenticator``. The module does no input or output. A driver sends what ``authentication``
yields to the listener, and sends the answers to ``authentication``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from millrace.config.security_options import SaslLogin
from millrace.errors import InvalidRequestError, SaslAuthenticationError
from millrace.kafka_protocol.calls.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from millrace.kafka_protocol.calls.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from millrace.kafka_protocol.data.request_header import RequestHeader
from millrace.kafka_protocol.lookup import request_header_version, response_header_version
from millrace.kafka_protocol.message import Message
from millrace.kafka_protocol.wire import WireError
from millrace.security.kerberos import KerberosLogin, check_kerberos, kerberos_exchange
from millrace.security.scram import ScramClient

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
GSSAPI: Final = "GSSAPI"
_SEPARATOR: Final = "\x01"
RESPONSE_BYTES_MAX: Final = 12 * 1024
"""Largest answer to a request of SASL."""
LIFETIME_PART: Final = 0.85
"""Part of a session's lifetime after which a client no longer begins calls on the connection."""
_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2
CORRELATION: Final = b"sasl"
"""Start of a broker's answer, which no other protocol has there."""
_CORRELATION_ID: Final = int.from_bytes(CORRELATION)
_CORRELATION: Final = struct.Struct(">i")


R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class SaslCredentials:
    """Mechanism, user and password of a client, or its login with Kerberos."""

    mechanism: str
    username: str
    password: str = field(repr=False)
    """The password, or the token of OAUTHBEARER."""
    kerberos: KerberosLogin | None = field(default=None, repr=False)
    """The login of GSSAPI."""
    is_token: bool = False
    """True if user and password are a delegation token, which only SCRAM takes."""


CredentialsSource = Callable[[], SaslCredentials]
"""Credentials of a new connection. It may block, and raise ``SaslAuthenticationError`` and ``OSError``."""


def credentials_source(
    mechanism: str, username: str, password: str, options: SaslLogin, jaas: dict[str, str]
) -> CredentialsSource:
    """Return the credentials of a client. Raises ``InvalidConfigError``."""
    if mechanism == OAUTHBEARER:
        from millrace.security.oauth_login import OAuthLogin  # only here, because its HTTP client takes 1 MB of memory

        login = OAuthLogin(options, jaas)
        return lambda: SaslCredentials(mechanism, "", login.token())
    if mechanism == GSSAPI:
        check_kerberos("sasl.mechanism")
        kerberos = SaslCredentials(mechanism, "", "", KerberosLogin(options, jaas))
        return lambda: kerberos
    is_token = jaas.get("tokenauth", "").lower() == "true"
    credentials = SaslCredentials(mechanism, username, password, is_token=is_token)
    return lambda: credentials


class SaslSession(NamedTuple):
    """An authenticated connection."""

    lifetime_ms: int
    """Time after which the broker closes the connection; 0: never."""


Exchange = Generator[bytes, bytes, SaslSession]
"""Exchange of requests (with their lengths) and responses (without)."""


def authentication(credentials: SaslCredentials, host: str, client_id: str) -> Exchange:
    """Authenticate a new connection to a broker at ``host``, whose audit has ``client_id``.

    Raises ``SaslAuthenticationError`` in ``send``, and ``InvalidRequestError`` at a listener of another protocol.
    """
    mechanism = credentials.mechanism
    answer = yield _request(SaslHandshakeRequest(mechanism=mechanism), _HANDSHAKE_VERSION, client_id)
    handshake = _response(answer, SaslHandshakeResponse, _HANDSHAKE_VERSION)
    if handshake.error_code:
        known = ", ".join(handshake.mechanisms)
        raise SaslAuthenticationError(
            f"the broker does not take sasl.mechanism={mechanism}: it takes {known}"
            if known
            else "this listener has no SASL: set security.protocol=PLAINTEXT or SSL"
        )
    steps = exchange(credentials, host)
    message = next(steps)
    while True:
        try:
            answer, lifetime_ms = yield from _step(message, client_id)
        except SaslAuthenticationError as error:
            raise refusal(credentials, error.message) from None
        try:
            message = steps.send(answer)
        except StopIteration:
            return SaslSession(lifetime_ms)


def refusal(credentials: SaslCredentials, reason: str) -> SaslAuthenticationError:
    """Return the error of a client that a broker refuses, with the options to check."""
    if credentials.mechanism == OAUTHBEARER:
        check = "the token of sasl.oauthbearer.token.endpoint.url"
    elif credentials.mechanism == GSSAPI:
        check = "keyTab and principal in sasl.jaas.config, and sasl.kerberos.service.name"
    elif credentials.is_token:
        check = "the delegation token in sasl.jaas.config"
    else:
        check = "sasl.username and sasl.password, or sasl.jaas.config"
    user = f" of {credentials.username}" if credentials.username else ""
    return SaslAuthenticationError(f"{reason}: check {check} ({credentials.mechanism}{user})")


def exchange(credentials: SaslCredentials, host: str) -> Generator[bytes, bytes, None]:
    """Yield the messages of the mechanism, and take the broker's. Raises ``SaslAuthenticationError`` in ``send``."""
    mechanism, secret = credentials.mechanism, credentials.password
    if mechanism == OAUTHBEARER:
        # With an error the broker answers at once (RFC 7628 has another message), so that one message is enough.
        yield f"n,,{_SEPARATOR}auth=Bearer {secret}{_SEPARATOR}{_SEPARATOR}".encode()
    elif mechanism == GSSAPI:
        assert credentials.kerberos is not None, "credentials of GSSAPI have it"
        yield from kerberos_exchange(credentials.kerberos, host)
    elif mechanism == PLAIN:
        yield f"\0{credentials.username}\0{secret}".encode()
    else:
        scram = ScramClient(mechanism, credentials.username, secret, is_token=credentials.is_token)
        challenge = yield scram.first()
        scram.check((yield scram.final(challenge)))


def _step(token: bytes, client_id: str) -> Generator[bytes, bytes, tuple[bytes, int]]:
    answer = yield _request(SaslAuthenticateRequest(auth_bytes=token), _AUTHENTICATE_VERSION, client_id)
    response = _response(answer, SaslAuthenticateResponse, _AUTHENTICATE_VERSION)
    if response.error_code:
        raise SaslAuthenticationError(response.error_message or f"the broker refuses the user ({response.error_code})")
    return response.auth_bytes, response.session_lifetime_ms


def _request(request: Message, version: int, client_id: str) -> bytes:
    header = RequestHeader(
        request_api_key=request.API_KEY,
        request_api_version=version,
        correlation_id=_CORRELATION_ID,
        client_id=client_id,
    )
    data = header.encode(request_header_version(request.API_KEY, version)) + request.encode(version)
    return struct.pack(">i", len(data)) + data


def _response(data: bytes, kind: type[R], version: int) -> R:
    """Decode a response. Raises ``InvalidRequestError`` if it is of another protocol, ``SaslAuthenticationError``."""
    try:
        if _CORRELATION.unpack_from(data)[0] != _CORRELATION_ID:
            raise InvalidRequestError("the answer to SASL is not from a listener for Kafka's framing")
        start = _CORRELATION.size + response_header_version(kind.API_KEY, version)  # there are no tagged fields
        return kind.decode_from(memoryview(data), version, start)[0]
    except (struct.error, WireError) as error:
        raise SaslAuthenticationError(f"the answer to SASL cannot be read: {error}") from None
