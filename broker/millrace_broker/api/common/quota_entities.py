"""Quota entities and filters, as the calls for quotas carry them."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.protocol import millrace_pb2 as pb
from millrace.quotas import QuotaEntity


def read_entity(parts: Iterable[pb.QuotaEntityPart]) -> QuotaEntity:
    """Return the entity of a request. Raises ``InvalidRequestError``."""
    return QuotaEntity.of((each.type, each.name if each.HasField("name") else None) for each in parts)


def entity_parts(entity: QuotaEntity) -> list[pb.QuotaEntityPart]:
    """Return the parts of an entity for a message."""
    return [pb.QuotaEntityPart(type=kind, name=name) for kind, name in entity.parts]
