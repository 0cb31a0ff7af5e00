"""Kafka's DescribeCluster call, which names brokers and controller (KIP-700)."""

from __future__ import annotations

from typing import Final

from millrace.acls import ResourceType
from millrace.kafka_protocol.calls.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from millrace_broker.kafka_api import operations
from millrace_broker.kafka_api.brokers import nodes
from millrace_broker.kafka_api.call import KafkaRequest

_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_MISMATCHED_ENDPOINT_TYPE: Final = 114
_UNSUPPORTED_ENDPOINT_TYPE: Final = 115


async def handle(message: DescribeClusterRequest, request: KafkaRequest) -> DescribeClusterResponse:
    """Describe the live brokers. There are no other ones, and no controllers apart from brokers."""
    if message.endpoint_type == _CONTROLLERS:  # a client with bootstrap.controllers
        return _refused(_MISMATCHED_ENDPOINT_TYPE, "this is a broker and no controller: set bootstrap.servers")
    if message.endpoint_type != _BROKERS:
        return _refused(_UNSUPPORTED_ENDPOINT_TYPE, f"endpoint type {message.endpoint_type} is none of 1 and 2")
    broker = request.broker
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=0,
        endpoint_type=_BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.member.controller_id,
        brokers=tuple(
            DescribeClusterBroker(broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes(broker.member, request.context.listener_name)
        ),
        cluster_authorized_operations=operations.bits(
            request, ResourceType.CLUSTER, is_wanted=message.include_cluster_authorized_operations
        ),
    )


def refuse(message: DescribeClusterRequest, version: int, error_code: int) -> DescribeClusterResponse:
    """Answer with the error."""
    return _refused(error_code)


def _refused(error_code: int, text: str | None = None) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=error_code,
        error_message=text,
        endpoint_type=_BROKERS,
        cluster_id="",
        brokers=(),
    )
