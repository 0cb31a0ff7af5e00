"""Delegation tokens by Kafka's own calls (KIP-48), which have no counterpart among millrace's.

Kafka's class is ``KafkaAdminClient``. Each call has a connection of its own, because the calls are rare.
"""

from __future__ import annotations

import base64
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from millrace.clients.transport.calls import not_reached
from millrace.clients.transport.client_tls import credentials_of, tls_of
from millrace.clients.transport.frame_socket import authenticate, exactly
from millrace.clients.transport.tls_socket import refusal_of, tls_socket
from millrace.config.client import ClientConfig
from millrace.errors import (
    BrokerUnavailableError,
    DelegationTokenNotFoundError,
    InvalidRequestError,
    MillraceError,
    error_of,
)
from millrace.kafka_protocol.calls.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from millrace.kafka_protocol.calls.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from millrace.kafka_protocol.calls.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from millrace.kafka_protocol.calls.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from millrace.kafka_protocol.data.request_header import RequestHeader
from millrace.kafka_protocol.lookup import request_header_version, response_header_version
from millrace.kafka_protocol.message import Message
from millrace.kafka_protocol.wire import WireError

_LENGTH: Final = struct.Struct(">i")
_CORRELATION_BYTES: Final = 4
_RESPONSE_BYTES_MAX: Final = 64 * 2**20
_REMEDIES: Final = {
    61: "the brokers have no delegation.token.secret.key",
    63: "the user neither owns nor renews the token",
    64: "log in with SASL or a certificate, and not with a delegation token",
    65: "the user needs an ACL for CreateTokens on the owner",
    66: "the token has expired: create another one",
}
"""Explanations of Kafka's error codes, whose responses have no message."""

R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token. Times are in ms since the epoch."""

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    @property
    def password(self) -> str:
        """The password for SCRAM, with the id as the user."""
        return base64.b64encode(self.hmac).decode("ascii")


def create_token(config: ClientConfig, *, owner: str, renewers: Sequence[str], lifetime_ms: int) -> DelegationToken:
    """Create a token of ``owner`` (empty: the client's own user). Principals are names of users.

    Raises the broker's error, and ``BrokerUnavailableError``.
    """
    request = CreateDelegationTokenRequest(
        owner_principal_type="User" if owner else None,
        owner_principal_name=owner or None,
        renewers=tuple(CreatableRenewers(principal_type="User", principal_name=each) for each in renewers),
        max_lifetime_ms=lifetime_ms,
    )
    found = _call(config, request, CreateDelegationTokenResponse)
    _check(found.error_code)
    return DelegationToken(
        found.token_id,
        bytes(found.hmac),
        f"{found.principal_type}:{found.principal_name}",
        f"{found.token_requester_principal_type}:{found.token_requester_principal_name}",
        tuple(f"User:{each}" for each in renewers),
        found.issue_timestamp_ms,
        found.expiry_timestamp_ms,
        found.max_timestamp_ms,
    )


def describe_tokens(config: ClientConfig, owners: Sequence[str] = ()) -> list[DelegationToken]:
    """Describe the tokens that the client may see: of these users, or of all. Raises the errors of ``create_token``."""
    named = tuple(DescribeDelegationTokenOwner(principal_type="User", principal_name=each) for each in owners)
    found = _call(config, DescribeDelegationTokenRequest(owners=named or None), DescribeDelegationTokenResponse)
    _check(found.error_code)
    return [
        DelegationToken(
            each.token_id,
            bytes(each.hmac),
            f"{each.principal_type}:{each.principal_name}",
            f"{each.token_requester_principal_type}:{each.token_requester_principal_name}",
            tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in each.renewers),
            each.issue_timestamp,
            each.expiry_timestamp,
            each.max_timestamp,
        )
        for each in found.tokens
    ]


def renew_token(config: ClientConfig, token_id: str, period_ms: int) -> int:
    """Prolong a token by ``period_ms`` from now (negative: the brokers' default), and return its end.

    Raises ``DelegationTokenNotFoundError``, and the errors of ``create_token``.
    """
    request = RenewDelegationTokenRequest(hmac=_hmac(config, token_id), renew_period_ms=period_ms)
    found = _call(config, request, RenewDelegationTokenResponse)
    _check(found.error_code)
    return found.expiry_timestamp_ms


def expire_token(config: ClientConfig, token_id: str, period_ms: int) -> int:
    """End a token ``period_ms`` from now (negative: at once), and return its end.

    Raises the errors of ``renew_token``.
    """
    request = ExpireDelegationTokenRequest(hmac=_hmac(config, token_id), expiry_time_period_ms=period_ms)
    found = _call(config, request, ExpireDelegationTokenResponse)
    _check(found.error_code)
    return found.expiry_timestamp_ms


def _hmac(config: ClientConfig, token_id: str) -> bytes:
    for token in describe_tokens(config):
        if token.token_id == token_id:
            return token.hmac
    raise DelegationTokenNotFoundError(f"the user sees no delegation token with the id {token_id}")


def _check(error_code: int) -> None:
    if error_code:
        raise error_of(error_code, f"the broker refuses: {_REMEDIES.get(error_code, f'Kafka error {error_code}')}")


def _call(config: ClientConfig, request: Message, response: type[R]) -> R:
    """Make one call to the first broker that answers. Raises ``BrokerUnavailableError``, ``InvalidRequestError``."""
    failure: MillraceError = BrokerUnavailableError("bootstrap.servers is empty")
    for address in config.addresses:
        host, _, port = address.rpartition(":")
        try:
            return _call_at(config, host.removeprefix("[").removesuffix("]"), int(port), request, response)
        except ssl.SSLError as error:
            refusal = refusal_of(error, host, int(port))
            failure = refusal if isinstance(refusal, MillraceError) else not_reached(address, str(refusal))
        except OSError as error:
            failure = not_reached(address, str(error))
    raise failure


def _call_at(config: ClientConfig, host: str, port: int, request: Message, response: type[R]) -> R:
    tls, credentials, version = tls_of(config), credentials_of(config), request.VERSION_MAX
    deadline = time.monotonic() + config.request_timeout_ms / 1000
    header = RequestHeader(
        request_api_key=request.API_KEY, request_api_version=version, correlation_id=0, client_id=config.client_id
    )
    data = header.encode(request_header_version(request.API_KEY, version)) + request.encode(version)
    sock = socket.create_connection((host, port), config.socket_connection_setup_timeout_ms / 1000)
    try:
        if tls is not None:
            sock = tls_socket(sock, tls.current().context, host, port, deadline)
        if credentials is not None:
            authenticate(sock, credentials, host, deadline)
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        sock.sendall(_LENGTH.pack(len(data)) + data)
        (size_bytes,) = _LENGTH.unpack(exactly(sock, _LENGTH.size, deadline))
        if not _CORRELATION_BYTES <= size_bytes <= _RESPONSE_BYTES_MAX:
            raise InvalidRequestError(f"{host}:{port} is no listener for Kafka's framing")
        answer = exactly(sock, size_bytes, deadline)
    finally:
        sock.close()
    try:
        start = _CORRELATION_BYTES + response_header_version(request.API_KEY, version)  # there are no tagged fields
        return response.decode_from(memoryview(answer), version, start)[0]
    except (struct.error, WireError) as error:
        raise InvalidRequestError(f"the answer of {host}:{port} cannot be read: {error}") from None
