"""Kafka's ListConfigResources call, which lists resources with configurations (KIP-1142)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.errors import UnsupportedVersionError
from millrace.kafka_protocol.calls.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import check_request
from millrace_broker.api.common.configs import CLIENT_METRICS
from millrace_broker.broker import Broker
from millrace_broker.kafka_api.call import KafkaRequest

_WITH_TYPES: Final = 1
_ALL: Final = (pb.TOPIC, pb.BROKER, pb.BROKER_LOGGER, CLIENT_METRICS, pb.GROUP_RESOURCE)


async def handle(message: ListConfigResourcesRequest, request: KafkaRequest) -> ListConfigResourcesResponse:
    """List topics, brokers, and groups and client metrics with options. Version 0 asks for client metrics only."""
    check_request("ListConfigResources", request.broker, message, request.context)
    types = (message.resource_types or _ALL) if request.version >= _WITH_TYPES else (CLIENT_METRICS,)
    if not set(types) <= set(_ALL):
        raise UnsupportedVersionError(f"resource types {types}: known are {_ALL}")
    found = [
        ConfigResource(resource_name=name, resource_type=kind)
        for kind in types
        for name in await _names(request.broker, kind)
    ]
    return ListConfigResourcesResponse(throttle_time_ms=0, error_code=0, config_resources=tuple(found))


async def _names(broker: Broker, kind: int) -> Sequence[str]:
    if kind == pb.TOPIC:
        return sorted(broker.catalog.topics)
    if kind in (pb.BROKER, pb.BROKER_LOGGER):
        return [str(each.broker_id) for each in broker.member.live_brokers()]
    if kind == pb.GROUP_RESOURCE:
        return broker.group_configs.names()
    return await broker.executors.administer(broker.client_metrics.names)


def refuse(message: ListConfigResourcesRequest, version: int, error_code: int) -> ListConfigResourcesResponse:
    """Answer with the error."""
    return ListConfigResourcesResponse(throttle_time_ms=0, error_code=error_code, config_resources=())
