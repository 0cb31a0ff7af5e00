"""Kafka's SaslAuthenticate call, with a message of a SASL mechanism (KIP-152)."""

from __future__ import annotations

from millrace.errors import IllegalSaslStateError, MillraceError, SaslAuthenticationError
from millrace.kafka_protocol.calls.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.quotas import parked


async def handle(message: SaslAuthenticateRequest, request: KafkaRequest) -> SaslAuthenticateResponse:
    """Pass the message to the connection's exchange."""
    sasl = request.context.sasl
    if sasl is None:
        return refuse(message, request.version, IllegalSaslStateError.code)
    try:
        with parked():  # a refusal is late, and a provider's keys may have to be fetched
            token = await sasl.authenticate(bytes(message.auth_bytes))
    except MillraceError as error:
        audit = request.broker.audit
        if audit is not None and isinstance(error, SaslAuthenticationError):
            audit.record_refused_login(request.context, sasl.refused_user)
        return SaslAuthenticateResponse(error_code=code_of(error), error_message=error.message, auth_bytes=b"")
    return SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=token.message, session_lifetime_ms=token.lifetime_ms
    )


def refuse(message: SaslAuthenticateRequest, version: int, error_code: int) -> SaslAuthenticateResponse:
    """Answer with an error."""
    return SaslAuthenticateResponse(error_code=error_code, error_message=None, auth_bytes=b"")
