"""Handler of DescribeClientQuotas, which lists configured quotas (KIP-546)."""

from __future__ import annotations

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace.quotas import Match, QuotaFilter
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.quota_entities import entity_parts
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("DescribeClientQuotas")
async def handle(
    broker: Broker, request: pb.DescribeClientQuotasRequest, context: RequestContext
) -> pb.DescribeClientQuotasResponse:
    """List the quotas of the entities that match all filters. Raises ``InvalidRequestError``."""
    try:
        filters = [QuotaFilter(each.type, Match(each.match), each.name) for each in request.filters]
    except ValueError as error:
        raise InvalidRequestError(f"{error}: expected 0 (exact), 1 (default) or 2 (any)") from None

    def describe() -> pb.DescribeClientQuotasResponse:
        found = broker.quota_configs.describe(filters, strict=request.strict)
        return pb.DescribeClientQuotasResponse(
            entries=[
                pb.DescribeClientQuotasResponse.Entry(entity=entity_parts(entity), values=values)
                for entity, values in found.items()
            ]
        )

    return await broker.executors.administer(describe)
