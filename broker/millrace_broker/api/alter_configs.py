"""Handler of AlterConfigs for options of topics, groups and client metrics, and dynamic broker options."""

from __future__ import annotations

from collections.abc import Callable

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.configs import CLIENT_METRICS, is_group
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("AlterConfigs")
async def handle(broker: Broker, request: pb.AlterConfigsRequest, context: RequestContext) -> pb.AlterConfigsResponse:
    """Apply each alteration as a whole, or report its error."""
    response = pb.AlterConfigsResponse()
    for alteration in request.alterations:
        result = response.results.add(resource=alteration.resource)
        try:
            change: Callable[..., None] = broker.changes.alter_config
            if is_group(alteration.resource):
                change = broker.group_configs.alter
            elif alteration.resource.type == CLIENT_METRICS:
                change = broker.client_metrics.alter
            elif alteration.resource.type == pb.BROKER:
                change = broker.live_config.alter
            await broker.executors.administer(
                change,
                alteration.resource.name,
                dict(alteration.set),
                set(alteration.delete),
                validate_only=request.validate_only,
            )
        except Exception as error:  # noqa: BLE001 - the resource's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response
