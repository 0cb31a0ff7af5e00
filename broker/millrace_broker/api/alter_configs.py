"""AlterConfigs: set and delete options of topics, of groups, and of brokers what can be changed while they run."""

from __future__ import annotations

from collections.abc import Callable

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call, error_message
from millrace_broker.api.common.configs import is_group
from millrace_broker.broker import Broker


async def handle(broker: Broker, request: pb.AlterConfigsRequest, call: Call) -> pb.AlterConfigsResponse:
    """Apply each alteration whole, or say why not."""
    response = pb.AlterConfigsResponse()
    for alteration in request.alterations:
        result = response.results.add(resource=alteration.resource)
        try:
            change: Callable[..., None] = broker.changes.alter_config
            if is_group(alteration.resource):
                change = broker.group_configs.alter
            elif alteration.resource.type == pb.BROKER:
                change = broker.live_config.alter
            await broker.executors.administer(
                change,
                alteration.resource.name,
                dict(alteration.set),
                set(alteration.delete),
                validate_only=request.validate_only,
            )
        except Exception as error:  # noqa: BLE001 - stands beside the resource, unexpected ones are logged
            result.error.CopyFrom(error_message(error))
    return response
