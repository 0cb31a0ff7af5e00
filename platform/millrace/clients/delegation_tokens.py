"""Delegation tokens (KIP-48), by calls of Kafka's protocol.

millrace's own protocol has no such calls. Kafka's class is ``KafkaAdminClient``.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.clients.transport.kafka_call import call_once
from millrace.config.client import ClientConfig
from millrace.errors import (
    DelegationTokenAuthorizationError,
    DelegationTokenDisabledError,
    DelegationTokenExpiredError,
    DelegationTokenNotFoundError,
    DelegationTokenOwnerMismatchError,
    DelegationTokenRequestNotAllowedError,
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

_REMEDIES: Final = {
    DelegationTokenDisabledError.code: "the brokers have no delegation.token.secret.key",
    DelegationTokenOwnerMismatchError.code: "the user neither owns nor renews the token",
    DelegationTokenRequestNotAllowedError.code: "log in with SASL or a certificate, and not with a delegation token",
    DelegationTokenAuthorizationError.code: "the user needs an ACL for CreateTokens on the owner",
    DelegationTokenExpiredError.code: "the token has expired: create another one",
}
"""Explanations of Kafka's error codes, whose responses have no message."""


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
    found = call_once(config, request, CreateDelegationTokenResponse)
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
    found = call_once(config, DescribeDelegationTokenRequest(owners=named or None), DescribeDelegationTokenResponse)
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
    found = call_once(config, request, RenewDelegationTokenResponse)
    _check(found.error_code)
    return found.expiry_timestamp_ms


def expire_token(config: ClientConfig, token_id: str, period_ms: int) -> int:
    """End a token ``period_ms`` from now (negative: at once), and return its end.

    Raises the errors of ``renew_token``.
    """
    request = ExpireDelegationTokenRequest(hmac=_hmac(config, token_id), expiry_time_period_ms=period_ms)
    found = call_once(config, request, ExpireDelegationTokenResponse)
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
