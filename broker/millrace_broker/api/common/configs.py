"""Configuration resources, shared by DescribeConfigs and AlterConfigs."""

from __future__ import annotations

from typing import Final

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.broker import Broker

CLIENT_METRICS: Final = 16
"""Type of the configuration of a client metrics subscription."""


def is_broker(broker: Broker, resource: pb.ConfigResource) -> bool:
    """Return whether the resource is this broker or all brokers, rather than a topic.

    Raises ``InvalidRequestError`` for any other resource.
    """
    if resource.type == pb.TOPIC:
        return False
    if resource.type != pb.BROKER:
        raise InvalidRequestError(
            "configurations belong to topics (2), brokers (4), client metrics (16) and groups (32), not to type "
            f"{resource.type}"
        )
    if resource.name not in ("", str(broker.config.broker_id)):
        raise InvalidRequestError(
            f"this is broker {broker.config.broker_id}: send the request to broker {resource.name!r}"
        )
    return True


def is_group(resource: pb.ConfigResource) -> bool:
    """Return whether the resource is a group."""
    return resource.type == pb.GROUP_RESOURCE


def text_of(value: object) -> str:
    """Format an option's value as Kafka does."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
