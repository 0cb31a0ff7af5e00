"""Kafka's RenewDelegationToken call (KIP-48).

The call sets another end of a token, within the token's longest lifetime.
"""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.delegation_tokens import NO_TIME, check_client
from millrace_broker.kafka_api.error_codes import code_of


async def handle(message: RenewDelegationTokenRequest, request: KafkaRequest) -> RenewDelegationTokenResponse:
    """Prolong the token, which the client owns or may renew."""
    try:
        check_client(request)
        expires_ms = await request.broker.executors.administer(
            request.broker.delegation_tokens.renew,
            str(request.context.principal),
            bytes(message.hmac),
            message.renew_period_ms,
        )
    except MillraceError as error:
        return refuse(message, request.version, code_of(error))
    return RenewDelegationTokenResponse(error_code=0, expiry_timestamp_ms=expires_ms, throttle_time_ms=0)


def refuse(message: RenewDelegationTokenRequest, version: int, error_code: int) -> RenewDelegationTokenResponse:
    """Answer with the error."""
    return RenewDelegationTokenResponse(error_code=error_code, expiry_timestamp_ms=NO_TIME, throttle_time_ms=0)
