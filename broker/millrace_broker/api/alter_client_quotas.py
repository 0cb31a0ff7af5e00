"""Handler of AlterClientQuotas, which changes quotas of entities (KIP-546).

The changes of an entity are applied as a whole, or refused.
"""

from __future__ import annotations

from functools import partial

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.quota_entities import read_entity
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.runtime.turns import Turns


@authorized("AlterClientQuotas")
async def handle(
    broker: Broker, request: pb.AlterClientQuotasRequest, context: RequestContext
) -> pb.AlterClientQuotasResponse:
    """Apply all changes of an entity, or report its error."""
    response, turns = pb.AlterClientQuotasResponse(), Turns()
    for entry in request.entries:
        await turns.next()
        result = response.results.add()
        try:
            alter = partial(broker.quota_configs.alter, validate_only=request.validate_only)
            await broker.executors.administer(alter, read_entity(entry.entity), dict(entry.set), set(entry.remove))
        except Exception as error:  # noqa: BLE001 - the entity's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response
