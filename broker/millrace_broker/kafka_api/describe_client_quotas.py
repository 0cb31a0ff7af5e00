"""Kafka's DescribeClientQuotas call (KIP-546).

The call returns quotas of users, client ids and addresses for ``kafka-configs``.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.errors import InvalidRequestError, UnsupportedVersionError
from millrace.kafka_protocol.calls.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.quotas import ENTITY_TYPES, Match
from millrace_broker.api.common.access_rules import check_request
from millrace_broker.api.describe_client_quotas import handle as describe
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.hash_order import capacity_of, in_hash_order


async def handle(message: DescribeClientQuotasRequest, request: KafkaRequest) -> DescribeClientQuotasResponse:
    """List the quotas of the entities that match all components. Raises ``InvalidRequestError``."""
    check_request("DescribeClientQuotas", request.broker, message, request.context)
    asked = pb.DescribeClientQuotasRequest(filters=map(_filter, message.components), strict=message.strict)
    answer = await describe(request.broker, asked, request.context)
    return DescribeClientQuotasResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message="",
        entries=tuple(
            EntryData(
                entity=tuple(
                    EntityData(entity_type=each.type, entity_name=each.name if each.HasField("name") else None)
                    for each in in_hash_order(entry.entity, name=lambda part: part.type)
                ),
                values=tuple(ValueData(key=key, value=entry.values[key]) for key in _in_order(entry.values)),
            )
            for entry in answer.entries
        ),
    )


def _in_order(keys: Iterable[str]) -> list[str]:
    """Sort the keys of one entity's quotas as two of Kafka's maps do.

    The first map had the keys in the request, and the second has them since.
    """
    asked = in_hash_order(sorted(keys), name=str)
    return in_hash_order(asked, name=str, capacity=capacity_of(len(asked)))


def _filter(component: ComponentData) -> pb.DescribeClientQuotasRequest.Filter:
    """Return a filter. Raises ``InvalidRequestError`` and ``UnsupportedVersionError`` for one that Kafka refuses."""
    kind, match, name = component.entity_type, component.match_type, component.match
    if kind and kind not in ENTITY_TYPES:
        raise UnsupportedVersionError(f"no quota belongs to the entity type {kind}: expected {', '.join(ENTITY_TYPES)}")
    if match not in list(Match):
        raise InvalidRequestError(f"match type {match} of {kind} is none of 0 (exact), 1 (default) and 2 (any)")
    if (match == Match.EXACT) != (name is not None):
        raise InvalidRequestError(f"{kind}: an exact match has a name, and no other match has one")
    return pb.DescribeClientQuotasRequest.Filter(type=kind, match=Match(match), name=name or "")  # type: ignore[arg-type]


def refuse(message: DescribeClientQuotasRequest, version: int, error_code: int) -> DescribeClientQuotasResponse:
    """Answer with the error."""
    return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=error_code, error_message=None, entries=None)
