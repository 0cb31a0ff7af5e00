"""Operations of ``Admin`` on client quotas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from millrace.clients.connections import Connections
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item
from millrace.quotas import QuotaEntity, QuotaFilter


class QuotaOperations:
    """Operations of ``Admin`` on quotas of users, client ids and addresses (KIP-546)."""

    _connections: Connections

    def describe_client_quotas(
        self, filters: Iterable[QuotaFilter] = (), *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of the entities that match all filters, and with ``strict`` have no other part."""
        request = pb.DescribeClientQuotasRequest(
            filters=[
                pb.DescribeClientQuotasRequest.Filter(
                    type=each.kind,
                    match=pb.DescribeClientQuotasRequest.Match.ValueType(each.match),
                    name=each.name,
                )
                for each in filters
            ],
            strict=strict,
        )
        response = self._connections.call(lambda stub: stub.DescribeClientQuotas, request)
        return {
            QuotaEntity.of((each.type, each.name if each.HasField("name") else None) for each in entry.entity): dict(
                entry.values
            )
            for entry in response.entries
        }

    def alter_client_quotas(
        self,
        entity: QuotaEntity,
        values: Mapping[str, float],
        *,
        remove: Collection[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set and remove quotas of an entity. Raises ``InvalidRequestError``; then nothing has changed."""
        entry = pb.AlterClientQuotasRequest.Entry(
            entity=[pb.QuotaEntityPart(type=kind, name=name) for kind, name in entity.parts],
            set=values,
            remove=remove,
        )
        request = pb.AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
        (result,) = self._connections.call(lambda stub: stub.AlterClientQuotas, request).results
        check_item(result.error)
