"""ListConfigResources: what has configurations (KIP-1142)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.errors import UnsupportedVersionError
from millrace.kafka_protocol.calls.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from millrace_broker.broker import Broker
from millrace_broker.kafka_api.call import KafkaRequest

_WITH_TYPES: Final = 1
_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_ALL: Final = (_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP)


async def handle(message: ListConfigResourcesRequest, request: KafkaRequest) -> ListConfigResourcesResponse:
    """List topics, brokers, and groups with options. There are no client metrics, which version 0 asks for."""
    types = (message.resource_types or _ALL) if request.version >= _WITH_TYPES else (_CLIENT_METRICS,)
    if not set(types) <= set(_ALL):
        raise UnsupportedVersionError(f"resource types {types}: known are {_ALL}")
    return ListConfigResourcesResponse(
        throttle_time_ms=0,
        error_code=0,
        config_resources=tuple(
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in types
            for name in _names(request.broker, kind)
        ),
    )


def _names(broker: Broker, kind: int) -> Iterable[str]:
    if kind == _TOPIC:
        return sorted(broker.catalog.topics)
    if kind in (_BROKER, _BROKER_LOGGER):
        return [str(each.broker_id) for each in broker.live_brokers()]
    return broker.group_configs.names() if kind == _GROUP else ()


def refuse(message: ListConfigResourcesRequest, version: int, error_code: int) -> ListConfigResourcesResponse:
    """Answer with the error."""
    return ListConfigResourcesResponse(throttle_time_ms=0, error_code=error_code, config_resources=())
