"""Handler of AlterConfigs.

The call changes options of topics, groups and client metrics, dynamic broker options, and log levels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millrace.errors import InvalidConfigError, InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.configs import CLIENT_METRICS, check_addressee, is_group, is_list, unknown_type
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.config.log_levels import alter_log_levels
from millrace_broker.metadata.option_changes import ListChange, OptionChange
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


async def alter(
    broker: Broker, alteration: pb.AlterConfigsRequest.Alteration, *, replaces: bool = False, validate_only: bool
) -> None:
    """Apply an alteration for a caller that has authorized the client. Raises ``MillraceError``.

    With ``replaces``, all options of the resource that the alteration does not set are deleted.
    """
    change = _change(broker, alteration.resource)
    if replaces:
        change = partial(change, replaces=True)
    await broker.executors.administer(change, _values(alteration), set(alteration.delete), validate_only=validate_only)


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


def _values(alteration: pb.AlterConfigsRequest.Alteration) -> dict[str, OptionChange]:
    """Return the options to set, and the changes of lists. Raises ``InvalidConfigError``, ``InvalidRequestError``."""
    append, subtract = alteration.append, alteration.subtract
    if twice := sorted(
        (append.keys() & subtract.keys())
        | (set(alteration.set) | set(alteration.delete)) & (append.keys() | subtract.keys())
    ):
        raise InvalidRequestError(f"{', '.join(twice)} is changed twice in the request")
    if alteration.resource.type == pb.BROKER_LOGGER and (append or subtract):
        raise InvalidRequestError("levels of loggers are no lists: set them")
    for option in (*append, *subtract):
        if not is_list(option):
            raise InvalidConfigError(f"{option} is no list: set it to a value")
    return {
        **alteration.set,
        **{option: ListChange(append=text) for option, text in append.items()},
        **{option: ListChange(subtract=text) for option, text in subtract.items()},
    }
