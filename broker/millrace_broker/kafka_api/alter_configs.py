"""Kafka's AlterConfigs call, which replaces the options of a resource.

The call sets the named options, and deletes all other options that the resource has.
"""

from __future__ import annotations

from collections import Counter

from millrace.errors import InvalidRequestError
from millrace.kafka_protocol.calls.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import known_error
from millrace_broker.api.alter_configs import alter
from millrace_broker.api.common.access_rules import check_request
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.configs import code_of_change, resource
from millrace_broker.kafka_api.error_codes import NONE
from millrace_broker.runtime.turns import Turns


async def handle(message: AlterConfigsRequest, request: KafkaRequest) -> AlterConfigsResponse:
    """Replace the options of each resource as a whole, or refuse it."""
    responses, turns = [], Turns()
    times = Counter((each.resource_type, each.resource_name) for each in message.resources)
    for each in message.resources:
        await turns.next()
        try:
            alteration = _alteration(each, request)
            if times[each.resource_type, each.resource_name] > 1:
                raise InvalidRequestError(f"{each.resource_name} is in the request twice: put its options together")
            await alter(request.broker, alteration, replaces=True, validate_only=message.validate_only)
        except Exception as error:  # noqa: BLE001 - the resource's error; unexpected errors are logged
            known = known_error(error)
            responses.append(_response(each, code_of_change(each.resource_type, known), known.message))
        else:
            responses.append(_response(each, NONE, None))
    return AlterConfigsResponse(throttle_time_ms=0, responses=tuple(responses))


def _alteration(wanted: AlterConfigsResource, request: KafkaRequest) -> pb.AlterConfigsRequest.Alteration:
    if wanted.resource_type == pb.BROKER_LOGGER:
        raise InvalidRequestError("AlterConfigs does not change the levels of loggers: use IncrementalAlterConfigs")
    named = resource(wanted.resource_type, wanted.resource_name)
    checked = pb.AlterConfigsRequest(alterations=[pb.AlterConfigsRequest.Alteration(resource=named)])
    check_request("AlterConfigs", request.broker, checked, request.context)
    values: dict[str, str] = {}
    for each in wanted.configs:
        if each.value is None:
            raise InvalidRequestError(f"{each.name} has no value: leave it out to delete it")
        if each.name in values:
            raise InvalidRequestError(f"{each.name} is set twice in the request: set it once")
        values[each.name] = each.value
    return pb.AlterConfigsRequest.Alteration(resource=named, set=values)


def _response(wanted: AlterConfigsResource, error_code: int, text: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error_code,
        error_message=text,
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
    )


def refuse(message: AlterConfigsRequest, version: int, error_code: int) -> AlterConfigsResponse:
    """Answer each resource with the error."""
    failed = tuple(_response(each, error_code, None) for each in message.resources)
    return AlterConfigsResponse(throttle_time_ms=0, responses=failed)
