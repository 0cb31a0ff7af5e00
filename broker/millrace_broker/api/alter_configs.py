"""Handler of AlterConfigs.

The call changes options of topics, groups and client metrics, dynamic broker options, and log levels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.configs import CLIENT_METRICS, changed_lists, check_addressee, is_group, unknown_type
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.api.describe_configs import entries_of
from millrace_broker.broker import Broker
from millrace_broker.config.log_levels import alter_log_levels
from millrace_broker.runtime.turns import Turns


@authorized("AlterConfigs")
async def handle(broker: Broker, request: pb.AlterConfigsRequest, context: RequestContext) -> pb.AlterConfigsResponse:
    """Apply each alteration as a whole, or report its error."""
    response, turns = pb.AlterConfigsResponse(), Turns()
    for alteration in request.alterations:
        await turns.next()
        result = response.results.add(resource=alteration.resource)
        try:
            await alter(broker, alteration, validate_only=request.validate_only)
        except Exception as error:  # noqa: BLE001 - the resource's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response


async def alter(broker: Broker, alteration: pb.AlterConfigsRequest.Alteration, *, validate_only: bool) -> None:
    """Apply an alteration for a caller that has authorized the client. Raises ``MillraceError``."""
    await broker.executors.administer(
        _change(broker, alteration.resource),
        await _values(broker, alteration),
        set(alteration.delete),
        validate_only=validate_only,
    )


def _change(broker: Broker, resource: pb.ConfigResource) -> Callable[..., None]:
    """Return the function that sets and deletes options of a resource. Raises ``InvalidRequestError``."""
    if resource.type == pb.BROKER_LOGGER:
        check_addressee(broker, resource)
        return alter_log_levels
    change: Callable[..., None] = broker.changes.alter_config
    if is_group(resource):
        change = broker.group_configs.alter
    elif resource.type == CLIENT_METRICS:
        change = broker.client_metrics.alter
    elif resource.type == pb.BROKER:
        change = broker.live_config.alter
    elif resource.type != pb.TOPIC:
        raise unknown_type(resource)
    return partial(change, resource.name)


async def _values(broker: Broker, alteration: pb.AlterConfigsRequest.Alteration) -> dict[str, str]:
    """Return the options to set, with the lists to which elements are appended or subtracted."""
    if not (alteration.append or alteration.subtract):
        return dict(alteration.set)
    if twice := sorted(
        (alteration.append.keys() & alteration.subtract.keys())
        | (set(alteration.set) | set(alteration.delete)) & (alteration.append.keys() | alteration.subtract.keys())
    ):
        raise InvalidRequestError(f"{', '.join(twice)} is changed twice in the request")
    present = {entry.name: entry.value for entry in await entries_of(broker, alteration.resource)}
    return {**alteration.set, **changed_lists(present, alteration.append, alteration.subtract)}
