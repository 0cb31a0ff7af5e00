"""Kafka's ExpireDelegationToken call (KIP-48).

The call sets an earlier end of a token, or deletes the token.
"""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.delegation_tokens import NO_TIME, check_client
from millrace_broker.kafka_api.error_codes import code_of


async def handle(message: ExpireDelegationTokenRequest, request: KafkaRequest) -> ExpireDelegationTokenResponse:
    """End the token, which the client owns or may renew."""
    try:
        check_client(request)
        expires_ms = await request.broker.executors.administer(
            request.broker.delegation_tokens.expire,
            str(request.context.principal),
            bytes(message.hmac),
            message.expiry_time_period_ms,
        )
    except MillraceError as error:
        return refuse(message, request.version, code_of(error))
    return ExpireDelegationTokenResponse(error_code=0, expiry_timestamp_ms=expires_ms, throttle_time_ms=0)


def refuse(message: ExpireDelegationTokenRequest, version: int, error_code: int) -> ExpireDelegationTokenResponse:
    """Answer with the error."""
    return ExpireDelegationTokenResponse(error_code=error_code, expiry_timestamp_ms=NO_TIME, throttle_time_ms=0)
