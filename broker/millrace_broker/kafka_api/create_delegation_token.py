"""Kafka's CreateDelegationToken call (KIP-48, KIP-373).

The call creates a token for the client, or for another user.
"""

from __future__ import annotations

from millrace.acls import AclOperation, ResourceType
from millrace.errors import DelegationTokenAuthorizationError, InvalidPrincipalTypeError, MillraceError
from millrace.kafka_protocol.calls.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from millrace_broker.api.common.access import Need, access_for
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.delegation_tokens import NO_TIME, check_client, parts, requester_of, users
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.security.principal import USER


async def handle(message: CreateDelegationTokenRequest, request: KafkaRequest) -> CreateDelegationTokenResponse:
    """Create a token."""
    requester = str(request.context.principal)
    owner = f"{USER}:{message.owner_principal_name}" if message.owner_principal_name else requester
    asked_by = requester_of(request.version, requester)
    tokens = request.broker.delegation_tokens
    try:
        check_client(request)
        access = access_for(request.broker, request.context)
        need = Need(AclOperation.CREATE_TOKENS, ResourceType.USER, owner)
        if message.owner_principal_type not in (None, "", USER):
            raise InvalidPrincipalTypeError(f"an owner of the type {message.owner_principal_type!r} is refused")
        # Without an authorizer nobody may act for another user, because that could be a broker. Kafka allows it.
        if owner != requester and not (access is not None and access.allows(need)):
            raise DelegationTokenAuthorizationError(f"{requester} may not create delegation tokens of {owner}")
        renewers = users(message.renewers)
        token = await request.broker.executors.administer(
            tokens.create, owner, requester, renewers, message.max_lifetime_ms
        )
    except MillraceError as error:
        return _refusal(owner, asked_by, code_of(error))
    return CreateDelegationTokenResponse(
        error_code=0,
        principal_type=parts(owner)[0],
        principal_name=parts(owner)[1],
        token_requester_principal_type=asked_by[0],
        token_requester_principal_name=asked_by[1],
        issue_timestamp_ms=token.issued_ms,
        expiry_timestamp_ms=token.expires_ms,
        max_timestamp_ms=token.max_ms,
        token_id=token.token_id,
        hmac=tokens.hmac_of(token.token_id),
        throttle_time_ms=0,
    )


def refuse(message: CreateDelegationTokenRequest, version: int, error_code: int) -> CreateDelegationTokenResponse:
    """Answer with the error."""
    owner = f"{message.owner_principal_type or ''}:{message.owner_principal_name or ''}"
    return _refusal(owner, ("", ""), error_code)


def _refusal(owner: str, asked_by: tuple[str, str], error_code: int) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=error_code,
        principal_type=parts(owner)[0],
        principal_name=parts(owner)[1],
        token_requester_principal_type=asked_by[0],
        token_requester_principal_name=asked_by[1],
        issue_timestamp_ms=NO_TIME,
        expiry_timestamp_ms=NO_TIME,
        max_timestamp_ms=NO_TIME,
        token_id="",
        hmac=b"",
        throttle_time_ms=0,
    )
