"""Kafka's AlterClientQuotas call (KIP-546).

The call changes quotas of users, client ids and addresses for ``kafka-configs``.
"""

from __future__ import annotations

from millrace.errors import InvalidRequestError, MillraceError
from millrace.kafka_protocol.calls.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.alter_client_quotas import handle as alter
from millrace_broker.api.common.access_rules import check_request
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, text_of
from millrace_broker.kafka_api.hash_order import in_hash_order
from millrace_broker.runtime.turns import Turns


async def handle(message: AlterClientQuotasRequest, request: KafkaRequest) -> AlterClientQuotasResponse:
    """Change the quotas of each entity as a whole, or refuse them."""
    check_request("AlterClientQuotas", request.broker, message, request.context)
    entries, turns = [], Turns()
    for entry in message.entries:
        await turns.next()
        try:
            asked = pb.AlterClientQuotasRequest(entries=[_entry(entry)], validate_only=message.validate_only)
        except MillraceError as error:
            entries.append(_answer(entry, code_of(error), error.message))
            continue
        (result,) = (await alter(request.broker, asked, request.context)).results
        entries.append(_answer(entry, code_of(result.error), text_of(result.error)))
    return AlterClientQuotasResponse(throttle_time_ms=0, entries=tuple(entries))


def _entry(entry: AlterClientQuotasRequestEntryData) -> pb.AlterClientQuotasRequest.Entry:
    """Return a change. Raises ``InvalidRequestError`` if it changes a key twice."""
    keys = [each.key for each in entry.ops]
    if len(set(keys)) < len(keys):
        raise InvalidRequestError(f"the request changes a quota twice ({', '.join(keys)}): name each once")
    return pb.AlterClientQuotasRequest.Entry(
        entity=[pb.QuotaEntityPart(type=each.entity_type, name=each.entity_name) for each in entry.entity],
        set={each.key: each.value for each in entry.ops if not each.remove},
        remove=[each.key for each in entry.ops if each.remove],
    )


def _answer(
    entry: AlterClientQuotasRequestEntryData, error_code: int, text: str | None
) -> AlterClientQuotasResponseEntryData:
    return AlterClientQuotasResponseEntryData(
        error_code=error_code,
        error_message=text,
        entity=tuple(
            AlterClientQuotasResponseEntityData(entity_type=each.entity_type, entity_name=each.entity_name)
            for each in in_hash_order(entry.entity, name=lambda part: part.entity_type)
        ),
    )


def refuse(message: AlterClientQuotasRequest, version: int, error_code: int) -> AlterClientQuotasResponse:
    """Answer each entity with the error."""
    return AlterClientQuotasResponse(
        throttle_time_ms=0, entries=tuple(_answer(entry, error_code, None) for entry in message.entries)
    )
