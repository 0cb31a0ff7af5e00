"""AlterConfigs: set and delete options of topics and groups. A broker's options come from its file alone."""

from __future__ import annotations

from collections.abc import Callable

from millrace.errors import InvalidConfigError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.call import Call, error_message
from millrace_broker.api.configs import is_group
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
                change = _broker_change(broker, alteration.resource.name)
            await broker.administer(
                change,
                alteration.resource.name,
                dict(alteration.set),
                set(alteration.delete),
                validate_only=request.validate_only,
            )
        except Exception as error:  # noqa: BLE001 - stands beside the resource, unexpected ones are logged
            result.error.CopyFrom(error_message(error))
    return response


def _broker_change(broker: Broker, name: str) -> Callable[..., None]:
    """What changes the configuration of a broker, whichever; in a cluster, some of it can be."""
    if not broker.config.is_clustered:
        raise InvalidConfigError(
            "a broker's configuration cannot be changed while it runs: edit its properties file and restart it"
        )
    return broker.member.alter_broker_config
