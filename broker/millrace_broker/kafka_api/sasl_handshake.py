"""Kafka's SaslHandshake call, which chooses a SASL mechanism (KIP-43).

Version 0, after which messages of SASL come without Kafka's framing, is not answered. Clients have had version 1 since
Kafka 1.0.
"""

from __future__ import annotations

from millrace.errors import IllegalSaslStateError, MillraceError
from millrace.kafka_protocol.calls.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of


async def handle(message: SaslHandshakeRequest, request: KafkaRequest) -> SaslHandshakeResponse:
    """Begin an exchange, or answer with the mechanisms of the listener."""
    sasl = request.context.sasl
    if sasl is None:
        return refuse(message, request.version, IllegalSaslStateError.code)
    error_code = 0
    try:
        sasl.begin(message.mechanism)
    except MillraceError as error:
        error_code = code_of(error)
    return SaslHandshakeResponse(error_code=error_code, mechanisms=tuple(map(str, sasl.mechanisms)))


def refuse(message: SaslHandshakeRequest, version: int, error_code: int) -> SaslHandshakeResponse:
    """Answer with an error."""
    return SaslHandshakeResponse(error_code=error_code, mechanisms=())
