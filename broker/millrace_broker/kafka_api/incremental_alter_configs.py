"""Kafka's IncrementalAlterConfigs call (KIP-339).

The call sets and deletes options, and appends to or subtracts from lists.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from millrace.config.client_metrics import ClientMetricsConfig
from millrace.config.dynamic import is_dynamic
from millrace.config.group import GroupConfig
from millrace.config.topic import TopicConfig
from millrace.errors import InvalidRequestError, MillraceError
from millrace.kafka_protocol.calls.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import known_error
from millrace_broker.api.alter_configs import alter
from millrace_broker.api.common.access_rules import check_request
from millrace_broker.api.common.configs import CLIENT_METRICS, is_list
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.configs import Operation, code_of_change, resource
from millrace_broker.kafka_api.error_codes import NONE, code_of
from millrace_broker.runtime.turns import Turns

_OPTIONS: Final = {
    pb.TOPIC: frozenset(TopicConfig.option_names()),
    pb.GROUP_RESOURCE: frozenset(GroupConfig.option_names()),
    CLIENT_METRICS: frozenset(ClientMetricsConfig.option_names()),
}


async def handle(message: IncrementalAlterConfigsRequest, request: KafkaRequest) -> IncrementalAlterConfigsResponse:
    """Change each resource as a whole, or refuse it."""
    responses, turns = [], Turns()
    times = Counter((each.resource_type, each.resource_name) for each in message.resources)
    for each in message.resources:
        await turns.next()
        try:
            named = resource(each.resource_type, each.resource_name)
            checked = pb.AlterConfigsRequest(alterations=[pb.AlterConfigsRequest.Alteration(resource=named)])
            check_request("AlterConfigs", request.broker, checked, request.context)
            if times[each.resource_type, each.resource_name] > 1:
                raise InvalidRequestError(f"{each.resource_name} is in the request twice: put its changes together")
            await alter(request.broker, _alteration(each), validate_only=message.validate_only)
        except Exception as error:  # noqa: BLE001 - the resource's error; unexpected errors are logged
            known = known_error(error)
            responses.append(_response(each, _code(each, known), known.message))
        else:
            responses.append(_response(each, NONE, None))
    return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=tuple(responses))


def _alteration(wanted: AlterConfigsResource) -> pb.AlterConfigsRequest.Alteration:
    alteration = pb.AlterConfigsRequest.Alteration(resource=resource(wanted.resource_type, wanted.resource_name))
    values = {
        Operation.SET: alteration.set,
        Operation.APPEND: alteration.append,
        Operation.SUBTRACT: alteration.subtract,
    }
    seen = set()
    for each in wanted.configs:
        if each.name in seen:
            raise InvalidRequestError(f"{each.name} is changed twice in the request")
        seen.add(each.name)
        if each.config_operation not in list(Operation):
            raise InvalidRequestError(f"{each.name}: operation {each.config_operation} is none of 0 to 3")
        operation = Operation(each.config_operation)
        if operation is Operation.DELETE:
            # As in Kafka, the deletion of an option that no such resource has changes nothing.
            if _may_have(wanted.resource_type, each.name):
                alteration.delete.append(each.name)
        elif each.value is None:
            raise InvalidRequestError(f"{each.name} has no value: delete it, or set it to a value")
        else:
            values[operation][each.name] = each.value
    return alteration


def _may_have(kind: int, option: str) -> bool:
    return is_dynamic(option) if kind == pb.BROKER else kind not in _OPTIONS or option in _OPTIONS[kind]


def _code(wanted: AlterConfigsResource, error: MillraceError) -> int:
    changed = (each.name for each in wanted.configs if each.config_operation in (Operation.APPEND, Operation.SUBTRACT))
    return code_of_change(wanted.resource_type, error) if all(map(is_list, changed)) else code_of(error)


def _response(wanted: AlterConfigsResource, error_code: int, text: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error_code,
        error_message=text,
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
    )


def refuse(message: IncrementalAlterConfigsRequest, version: int, error_code: int) -> IncrementalAlterConfigsResponse:
    """Answer each resource with the error."""
    failed = tuple(_response(each, error_code, None) for each in message.resources)
    return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=failed)
