"""Configuration resources, shared by DescribeConfigs and AlterConfigs."""

from __future__ import annotations

from typing import Final

from millrace.config.listener_options import shared_name
from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.broker import Broker

_LISTS: Final = frozenset(
    (
        "advertised.listeners",
        "cleanup.policy",
        "follower.replication.throttled.replicas",
        "group.consumer.assignors",
        "leader.replication.throttled.replicas",
        "listeners",
        "log.cleanup.policy",
        "log.dirs",
        "match",
        "metrics",
        "sasl.enabled.mechanisms",
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
    )
)
"""Options whose values are lists with commas."""

CLIENT_METRICS: Final = 16
"""Type of the configuration of a client metrics subscription."""


def is_broker(broker: Broker, resource: pb.ConfigResource) -> bool:
    """Return whether the resource is this broker or all brokers, rather than a topic.

    Raises ``InvalidRequestError`` for any other resource.
    """
    if resource.type == pb.TOPIC:
        return False
    if resource.type != pb.BROKER:
        raise unknown_type(resource)
    if resource.name:
        check_addressee(broker, resource)
    return True


def unknown_type(resource: pb.ConfigResource) -> InvalidRequestError:
    """Return the error of a resource whose type has no configurations."""
    return InvalidRequestError(
        "configurations belong to topics (2), brokers (4), loggers of brokers (8), client metrics (16) and groups "
        f"(32), not to type {resource.type}"
    )


def check_addressee(broker: Broker, resource: pb.ConfigResource) -> None:
    """Raise ``InvalidRequestError`` if the resource is another broker, or one of its parts."""
    if resource.name != str(broker.config.broker_id):
        raise InvalidRequestError(
            f"this is broker {broker.config.broker_id}: send the request to broker {resource.name!r}"
        )


def is_group(resource: pb.ConfigResource) -> bool:
    """Return whether the resource is a group."""
    return resource.type == pb.GROUP_RESOURCE


def text_of(value: object) -> str:
    """Format an option's value as Kafka does."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_list(option: str) -> bool:
    """Return whether an option's value is a list, to which elements can be appended."""
    return shared_name(option) in _LISTS
