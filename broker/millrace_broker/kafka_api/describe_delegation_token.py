"""Kafka's DescribeDelegationToken call (KIP-48, KIP-373).

The call returns the tokens that the client owns, renews, requested, or may describe.
"""

from __future__ import annotations

from millrace.acls import AclOperation, ResourceType
from millrace.coordination.token_nodes import DelegationTokenNode
from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from millrace_broker.api.common.access import Access, Need, access_for
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.delegation_tokens import check_client, parts, requester_of
from millrace_broker.kafka_api.error_codes import code_of


async def handle(message: DescribeDelegationTokenRequest, request: KafkaRequest) -> DescribeDelegationTokenResponse:
    """Describe the tokens of the named owners, renewers and requesters, or all tokens."""
    principal = str(request.context.principal)
    access = access_for(request.broker, request.context)
    try:
        check_client(request)
        tokens = request.broker.delegation_tokens.all()
    except MillraceError as error:
        return refuse(message, request.version, code_of(error))
    if message.owners is not None:
        wanted = {f"{each.principal_type}:{each.principal_name}" for each in message.owners}
        tokens = [each for each in tokens if wanted & each.users]
    return DescribeDelegationTokenResponse(
        error_code=0,
        tokens=tuple(
            _described(each, request.broker.delegation_tokens.hmac_of(each.token_id), request.version)
            for each in tokens
            if principal in each.users or (access is not None and _may_see(access, each))
        ),
        throttle_time_ms=0,
    )


def _may_see(access: Access, token: DelegationTokenNode) -> bool:
    """Return whether the client may see another user's token."""
    return access.allows(
        Need(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id), is_logged=False
    ) or access.allows(Need(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner), is_logged=False)


def _described(token: DelegationTokenNode, token_hmac: bytes, version: int) -> DescribedDelegationToken:
    owner, requester = parts(token.owner), requester_of(version, token.requester)
    return DescribedDelegationToken(
        principal_type=owner[0],
        principal_name=owner[1],
        token_requester_principal_type=requester[0],
        token_requester_principal_name=requester[1],
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac,
        renewers=tuple(
            DescribedDelegationTokenRenewer(principal_type=parts(each)[0], principal_name=parts(each)[1])
            for each in token.renewers
        ),
    )


def refuse(message: DescribeDelegationTokenRequest, version: int, error_code: int) -> DescribeDelegationTokenResponse:
    """Answer with the error."""
    return DescribeDelegationTokenResponse(error_code=error_code, tokens=(), throttle_time_ms=0)
